//! Encryption to PostgreSQL: demanded where it is needed, verified, and never given up in silence.
//!
//! `0.0.0.0` leads to this machine and is not on the loopback: what holds for it holds for every host.

use outboxd::source::admin::Admin;
use outboxd::source::postgres::{Options, Postgres, Tls};
use outboxd::source::{SourceError, SourceErrorKind};
use std::time::Duration;

use crate::postgres_fixture::{self, text};
use crate::support::certificates::{Authority, Pair, hand_over};
use crate::support::eventually;
use crate::support::postgres::{Database, Server};
use crate::support::recorder::Recorder;

pub const AWAY: &str = "0.0.0.0";
pub const PASSWORD: &str = "hunter2-in-plain";

/// A server with a role `relay`, whose password would go over the wire as it is, and `certrole`, which has to
/// show a certificate.
pub struct Bench {
    server: Server,
    database: Database,
    pub wire: Recorder,
}

impl Bench {
    pub async fn plain() -> Self {
        let server = Server::start_own(&[]).await;
        let database = server.database().await;
        let roles = format!(
            "create role relay login superuser password '{PASSWORD}'; create role certrole login superuser"
        );
        database.execute_as_superuser(&roles).await;
        let hba = "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\n\
                   hostssl all certrole 127.0.0.1/32 cert\nhost all relay 127.0.0.1/32 password\n\
                   host all test_owner 127.0.0.1/32 trust\n";
        std::fs::write(server.socket_directory().join("data/pg_hba.conf"), hba).unwrap();
        server.execute("select pg_reload_conf()").await;
        let wire = Recorder::to(server.address()).await;
        Self {
            server,
            database,
            wire,
        }
    }

    /// A number of sessions; only a superuser sees all of them.
    async fn sessions(&self, sql: &str) -> i64 {
        let mut superuser = self.database.superuser().await;
        postgres_fixture::number_on(&mut superuser, sql).await
    }

    /// With this certificate, and trust in the clients of `authority`.
    pub async fn encrypted(pair: &Pair, authority: &Authority) -> Self {
        let bench = Self::plain().await;
        let place = bench.server.socket_directory();
        let ca = authority.ca();
        for (from, name) in [
            (&pair.certificate, "server.pem"),
            (&pair.key, "server.key"),
            (&ca, "ca.pem"),
        ] {
            hand_over(from, &place.join(name));
            let setting = match name {
                "server.pem" => "ssl_cert_file",
                "server.key" => "ssl_key_file",
                _ => "ssl_ca_file",
            };
            let path = place.join(name).display().to_string();
            let set = format!("alter system set {setting} = '{path}'");
            bench.server.execute(&set).await;
        }
        bench.server.execute("alter system set ssl = on").await;
        bench.server.execute("select pg_reload_conf()").await;
        eventually(Duration::from_secs(20), "TLS is on", || async {
            match text(&bench.database, "select current_setting('ssl')")
                .await
                .as_str()
            {
                "on" => Ok(()),
                other => Err(other.to_owned()),
            }
        })
        .await;
        bench
    }

    /// Its address off the loopback, by way of the wire, as a configuration writes it.
    pub fn fields(&self) -> String {
        format!(
            "host = \"{AWAY}\"\nport = {}\nuser = \"relay\"\npassword = \"{PASSWORD}\"\ndbname = \"{}\"\n",
            self.wire.port(),
            self.database.name
        )
    }

    /// As role `relay`, by way of the wire.
    fn options(&self, host: &str, change: impl FnOnce(&mut Options)) -> Options {
        let mut options = Options {
            url: None,
            host: Some(host.into()),
            port: Some(self.wire.port()),
            user: Some("relay".into()),
            password: Some(PASSWORD.to_owned().into()),
            dbname: Some(self.database.name.clone()),
            ..postgres_fixture::options("")
        };
        change(&mut options);
        options
    }

    async fn connect(
        &self,
        host: &str,
        change: impl FnOnce(&mut Options),
    ) -> Result<(), SourceError> {
        let source = Postgres::new(self.options(host, change)).unwrap();
        source.pending_sql().await.map(drop)
    }

    /// It must be refused in these words, before anything could be read on the wire.
    async fn refused(&self, words: &str, host: &str, change: impl FnOnce(&mut Options)) {
        let error = self.connect(host, change).await.expect_err(words);
        assert!(error.message.contains(words), "{words} in {error}");
        assert_eq!(error.kind, SourceErrorKind::Unusable, "{error}");
        for secret in [PASSWORD, "relay"] {
            assert!(!self.wire.heard(secret), "{secret} went over the wire");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_unless_plain_text_is_asked_for() {
    let bench = Bench::plain().await;
    bench.refused("offers no TLS", AWAY, |_| ()).await;
    let error = bench.connect(AWAY, |_| ()).await.unwrap_err();
    assert!(error.message.contains("tls = \"disable\""), "{error}");
    for tls in [Tls::Require, Tls::VerifyCa, Tls::VerifyFull] {
        bench
            .refused("offers no TLS", "127.0.0.1", |options| {
                options.tls = Some(tls)
            })
            .await;
    }
    let asked = "the request for encryption and nothing more";
    assert_eq!(bench.wire.said().len() % 8, 0, "{asked}");
    let url = format!(
        "postgres://relay:{PASSWORD}@{AWAY}:{}/{}",
        bench.wire.port(),
        bench.database.name
    );
    let by_url = |more: &str| {
        let url = format!("{url}{more}");
        Postgres::new(Options {
            url: Some(url.into()),
            ..postgres_fixture::options("")
        })
        .unwrap()
    };
    let error = by_url("").pending_sql().await.unwrap_err();
    assert!(error.message.contains("offers no TLS"), "{error}");
    assert!(!bench.wire.heard(PASSWORD));

    by_url("?sslmode=disable").pending_sql().await.unwrap();
    assert!(
        bench.wire.heard(PASSWORD),
        "the wire-tap hears what is plain"
    );
    // The loopback keeps what it had: nothing leaves the machine.
    bench.connect("127.0.0.1", |_| ()).await.unwrap();
    bench
        .connect(AWAY, |options| options.tls = Some(Tls::Disable))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_right_authority_is_enough_and_everything_is_encrypted() {
    let authority = Authority::new();
    let pair = authority.server(&[AWAY]);
    let bench = Bench::encrypted(&pair, &authority).await;
    bench
        .refused("UnknownIssuer: set ca_file", AWAY, |_| ())
        .await;
    let trusting = |options: &mut Options| options.ca_file = Some(authority.ca());
    bench.connect(AWAY, trusting).await.unwrap();
    for secret in [PASSWORD, "relay"] {
        assert!(!bench.wire.heard(secret), "{secret} went over the wire");
    }
    // LISTEN has a connection of its own, which is encrypted as well.
    let source = Postgres::new(bench.options(AWAY, trusting)).unwrap();
    source.migrate().await.unwrap();
    let listener = outboxd::source::Source::listen(&source).await.unwrap();
    assert!(listener.is_some());
    let plain = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid) \
                 where application_name = 'outboxd' and usename = 'relay' and not ssl";
    assert_eq!(bench.sessions(plain).await, 0);
    let encrypted = plain.replace("not ssl", "ssl");
    assert!(bench.sessions(&encrypted).await > 0);
}

#[tokio::test]
async fn other_certificates_are_refused() {
    let authority = Authority::new();
    let other = Authority::new();
    let trust = |authority: &Authority| {
        let ca = authority.ca();
        move |options: &mut Options| options.ca_file = Some(ca)
    };
    let bench = Bench::encrypted(&authority.server(&[AWAY]), &authority).await;
    bench.refused("UnknownIssuer", AWAY, trust(&other)).await;
    bench
        .refused("not valid for name", "127.0.0.1", trust(&authority))
        .await;
    // Without the name, the authority alone.
    bench
        .connect("127.0.0.1", |options| {
            options.ca_file = Some(authority.ca());
            options.tls = Some(Tls::VerifyCa);
        })
        .await
        .unwrap();
    let bench = Bench::encrypted(&authority.expired(&[AWAY]), &authority).await;
    bench.refused("xpired", AWAY, trust(&authority)).await;
}

#[tokio::test]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let bench = Bench::encrypted(&authority.server(&[AWAY]), &authority).await;
    let showing = |pair: Option<Pair>| {
        let ca = authority.ca();
        move |options: &mut Options| {
            options.user = Some("certrole".into());
            options.password = None;
            options.ca_file = Some(ca);
            options.client_cert_file = pair.as_ref().map(|pair| pair.certificate.clone());
            options.client_key_file = pair.map(|pair| pair.key);
        }
    };
    let error = bench.connect(AWAY, showing(None)).await.unwrap_err();
    assert!(error.message.contains("certificate"), "{error}");
    let own = authority.client("certrole");
    bench
        .connect(AWAY, showing(Some(own.clone())))
        .await
        .unwrap();
    let foreign = showing(Some(stranger.client("certrole")));
    let error = bench.connect(AWAY, foreign).await.unwrap_err();
    assert!(error.message.contains("client_cert_file"), "{error}");
    let another = showing(Some(authority.client("somebody")));
    assert!(bench.connect(AWAY, another).await.is_err());

    // What cannot be read is named, and no text of a key is shown.
    std::fs::write(&own.key, "-----BEGIN NOTHING-----\nc2VjcmV0\n").unwrap();
    let error = bench
        .connect(AWAY, showing(Some(own.clone())))
        .await
        .unwrap_err();
    assert!(
        error.message.contains("client_key_file") && error.message.contains("private key"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("c2VjcmV0"), "{error:?}");
    std::fs::remove_file(&own.key).unwrap();
    let error = bench.connect(AWAY, showing(Some(own))).await.unwrap_err();
    assert!(error.message.contains("cannot be read"), "{error}");
}
