//! Ways to log in beside user and password: tokens and credentials files.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use outboxd::sink::Sink;
use outboxd::sink::nats::{Nats, Options};
use outboxd::testing::sink::delivery;
use serde_json::{Value, json};

use super::bench::{SOON, options};
use crate::support::nats;

async fn publishes(server: &nats::Server, change: impl FnOnce(&mut Options)) {
    let session = sink(server, change).open().await.unwrap();
    session.publish(&delivery(1), SOON).await.unwrap();
    session.close().await;
}

fn sink(server: &nats::Server, change: impl FnOnce(&mut Options)) -> Nats {
    let mut options = Options {
        create_stream: true,
        ..options(server.url())
    };
    change(&mut options);
    Nats::new(options).unwrap()
}

async fn refusal(server: &nats::Server, change: impl FnOnce(&mut Options)) -> String {
    let opened = sink(server, change).open().await;
    opened.err().unwrap().to_string()
}

#[tokio::test]
async fn a_token_is_taken_from_the_option_the_url_or_a_file() {
    let token = "t0k/en@#";
    let server = nats::Server::start_with(&format!("authorization {{ token: \"{token}\" }}")).await;
    publishes(&server, |options| {
        options.token = Some(token.to_owned().into())
    })
    .await;
    publishes(&server, |options| {
        options.url = options.url.replace("://", "://t0k%2Fen%40%23@");
    })
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "wr0ng\n").unwrap();
    let by_file = sink(&server, |options| {
        options.token_file = Some(file.path().into())
    });
    let error = by_file.open().await.err().unwrap().to_string();
    assert!(error.contains("refused the credentials"), "{error}");
    assert!(!error.contains("wr0ng"), "{error}");
    std::fs::write(file.path(), format!("{token}\n")).unwrap();
    by_file.open().await.unwrap().close().await;
    let none = refusal(&server, |_| ()).await;
    assert!(none.contains("refused the credentials"), "{none}");
}

/// A server's operator and one account, and users of the account.
struct Operator {
    account: KeyPair,
    snippet: String,
}

impl Operator {
    fn new() -> Self {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        let of_operator = signed(
            &operator,
            &operator,
            json!({ "type": "operator", "version": 2 }),
        );
        let system = KeyPair::new_account();
        let unlimited = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let claims = |limits: &Value| json!({ "type": "account", "version": 2, "limits": limits });
        let of_account = signed(&operator, &account, claims(&unlimited));
        // JetStream does not start without a system account, which itself may have none of it.
        let mut few = unlimited.clone();
        for limit in ["mem_storage", "disk_storage", "streams", "consumer"] {
            few[limit] = json!(0);
        }
        let of_system = signed(&operator, &system, claims(&few));
        let snippet = format!(
            "operator: {of_operator}\nsystem_account: {}\nresolver: MEMORY\n\
             resolver_preload: {{ {}: {of_account}, {}: {of_system} }}",
            system.public_key(),
            account.public_key(),
            system.public_key()
        );
        Self { account, snippet }
    }

    /// The text of a credentials file.
    fn user(&self) -> String {
        let user = KeyPair::new_user();
        let claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
        let token = signed(&self.account, &user, claims);
        format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        )
    }
}

/// A token as NATS has them (nats-io/jwt, version 2).
fn signed(issuer: &KeyPair, subject: &KeyPair, claims: Value) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = part(json!({
        "jti": uuid::Uuid::new_v4().to_string(), "iat": 1_700_000_000, "iss": issuer.public_key(),
        "name": "test", "sub": subject.public_key(), "nats": claims,
    }));
    let text = format!("{head}.{body}");
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn a_credentials_file_is_read_again_for_each_connection() {
    let operator = Operator::new();
    let server = nats::Server::start_with(&operator.snippet).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let foreign = Operator::new().user();
    std::fs::write(file.path(), &foreign).unwrap();
    let by_file = sink(&server, |options| {
        options.creds_file = Some(file.path().into())
    });
    let secret = |text: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with("SU"));
        lines.next().unwrap().to_owned()
    };
    let error = by_file.open().await.err().unwrap();
    assert!(
        error.to_string().contains("refused the credentials"),
        "{error}"
    );
    assert!(
        !format!("{error:?}").contains(&secret(&foreign)),
        "{error:?}"
    );
    for _ in 0..2 {
        std::fs::write(file.path(), operator.user()).unwrap();
        let session = by_file.open().await.unwrap();
        session.publish(&delivery(1), SOON).await.unwrap();
        session.close().await;
    }
    // Half of a file, as an editor may leave it for a moment.
    let half = operator.user();
    std::fs::write(file.path(), &half[..half.len() / 2]).unwrap();
    let error = by_file.open().await.err().unwrap();
    assert!(
        error.to_string().contains("is not a credentials file"),
        "{error}"
    );
}
