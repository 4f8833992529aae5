//! TLS: demanded where something could leave the machine, verified, and never given up in silence.
//!
//! `0.0.0.0` leads to this machine and is not on the loopback: what holds for it holds for every host.

use outboxd::sink::Sink;
use outboxd::sink::nats::{Nats, Options};
use outboxd::testing::sink::delivery;
use secrecy::SecretString;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::bench::{SOON, options};
use crate::support::certificates::{Authority, Pair};
use crate::support::nats;
use crate::support::recorder::Recorder;

const AWAY: &str = "0.0.0.0";
const PASSWORD: &str = "hunter2-in-plain";

/// A server with the user `relay`, and a wire-tap before it.
struct Bench {
    server: nats::Server,
    wire: Recorder,
}

impl Bench {
    async fn with(snippet: &str) -> Self {
        let server = nats::Server::start_with(&format!(
            "authorization {{ users: [ {{ user: relay, password: \"{PASSWORD}\" }} ] }}\n{snippet}"
        ))
        .await;
        let wire = Recorder::to(server.address()).await;
        Self { server, wire }
    }

    async fn encrypted(pair: &Pair, more: &str) -> Self {
        let (certificate, key) = (pair.certificate.display(), pair.key.display());
        Self::with(&format!(
            "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\"\n{more} }}"
        ))
        .await
    }

    fn sink(&self, host: &str, change: impl FnOnce(&mut Options)) -> Nats {
        let mut options = Options {
            user: Some("relay".to_owned()),
            password: Some(SecretString::from(PASSWORD)),
            create_stream: true,
            ..options(format!("nats://{host}:{}", self.wire.port()))
        };
        change(&mut options);
        Nats::new(options).unwrap()
    }

    async fn publishes(&self, host: &str, change: impl FnOnce(&mut Options)) {
        let session = self.sink(host, change).open().await.unwrap();
        session.publish(&delivery(1), SOON).await.unwrap();
        session.close().await;
    }

    /// It must be refused in these words, before anything could be read on the wire.
    async fn refused(&self, words: &str, host: &str, change: impl FnOnce(&mut Options)) {
        let opened = self.sink(host, change).open().await;
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(words), "{words} in {error}");
        for secret in [PASSWORD, "relay", "CONNECT"] {
            assert!(!self.wire.heard(secret), "{secret} went over the wire");
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_unless_plain_text_is_asked_for() {
    let bench = Bench::with("").await;
    bench.refused("offers no TLS", AWAY, |_| ()).await;
    bench.refused("set tls = false", AWAY, |_| ()).await;
    let demand = |options: &mut Options| options.tls = Some(true);
    bench.refused("offers no TLS", "127.0.0.1", demand).await;
    bench
        .refused("offers no TLS", "127.0.0.1", |options| {
            options.url = options.url.replace("nats://", "tls://");
        })
        .await;
    // The second of two servers is not better than the first.
    bench
        .refused("nats://0.0.0.0", AWAY, |options| {
            options.url = format!("nats://127.0.0.1:1,{}", options.url);
        })
        .await;
    bench
        .publishes(AWAY, |options| options.tls = Some(false))
        .await;
    assert!(
        bench.wire.heard(PASSWORD),
        "the wire-tap hears what is plain"
    );
    // The loopback keeps what it had: nothing leaves the machine.
    bench.publishes("127.0.0.1", |_| ()).await;
}

#[tokio::test]
async fn the_right_authority_is_enough_and_everything_is_encrypted() {
    let authority = Authority::new();
    let bench = Bench::encrypted(&authority.server(&[AWAY, "127.0.0.1"]), "").await;
    bench
        .refused("UnknownIssuer: set ca_file", AWAY, |_| ())
        .await;
    bench
        .refused("asks for TLS: set tls = true", "127.0.0.1", |_| ())
        .await;
    let trusting = |options: &mut Options| options.ca_file = Some(authority.ca());
    bench.publishes(AWAY, trusting).await;
    bench.publishes("127.0.0.1", trusting).await;
    for secret in [PASSWORD, "CONNECT", "PUB"] {
        assert!(!bench.wire.heard(secret), "{secret} went over the wire");
    }
    // Not even when plain text was asked for: the server does not take it, and nothing was sent.
    bench
        .refused("asks for TLS", AWAY, |options| options.tls = Some(false))
        .await;
    assert!(bench.server.log().contains("Listening"));
}

#[tokio::test]
async fn other_certificates_are_refused() {
    let authority = Authority::new();
    let other = Authority::new();
    let trust = |authority: &Authority| {
        let ca = authority.ca();
        move |options: &mut Options| options.ca_file = Some(ca)
    };
    let bench = Bench::encrypted(&authority.server(&[AWAY]), "").await;
    bench.refused("UnknownIssuer", AWAY, trust(&other)).await;
    bench
        .refused("not valid for name", "127.0.0.1", trust(&authority))
        .await;
    bench
        .refused("/none cannot be read", AWAY, |options| {
            options.ca_file = Some("/none".into());
        })
        .await;
    let bench = Bench::encrypted(&authority.expired(&[AWAY]), "").await;
    bench.refused("xpired", AWAY, trust(&authority)).await;
}

#[tokio::test]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let authority = Authority::new();
    let stranger = Authority::new();
    let ask = format!("ca_file: \"{}\", verify: true", authority.ca().display());
    let bench = Bench::encrypted(&authority.server(&[AWAY]), &ask).await;
    let showing = |pair: Option<Pair>| {
        let ca = authority.ca();
        move |options: &mut Options| {
            options.ca_file = Some(ca);
            options.client_cert_file = pair.as_ref().map(|pair| pair.certificate.clone());
            options.client_key_file = pair.map(|pair| pair.key);
        }
    };
    let own = authority.client("relay");
    bench.publishes(AWAY, showing(Some(own.clone()))).await;
    bench.refused("client_cert_file", AWAY, showing(None)).await;
    let foreign = stranger.client("relay");
    bench
        .refused("client_cert_file", AWAY, showing(Some(foreign.clone())))
        .await;
    let mixed = Pair {
        certificate: own.certificate.clone(),
        key: foreign.key,
    };
    bench
        .refused("do not fit", AWAY, showing(Some(mixed)))
        .await;
    // What cannot be read is named, and no text of a key is shown.
    std::fs::write(&own.key, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0!\n").unwrap();
    let opened = bench.sink(AWAY, showing(Some(own))).open().await;
    let error = opened.err().unwrap();
    assert!(error.message.contains("private key"), "{error}");
    assert!(!format!("{error:?}").contains("c2VjcmV0"), "{error:?}");
}

/// Servers tell where their cluster's other members are. Whoever answers first must not decide where the
/// credentials go.
#[tokio::test]
async fn servers_that_only_a_server_names_are_not_used() {
    let advertised = Bench::with("").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = format!("127.0.0.1:{}", advertised.wire.port());
    let (greeted, mut count) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (read, mut write) = stream.into_split();
            let info = format!(
                "INFO {{\"server_id\":\"F\",\"server_name\":\"fake\",\"version\":\"2.15.0\",\"go\":\"\",\
                 \"host\":\"\",\"port\":0,\"headers\":true,\"proto\":1,\"max_payload\":1048576,\
                 \"connect_urls\":[\"{other}\"]}}\r\n"
            );
            let _ = write.write_all(info.as_bytes()).await;
            // It answers the greeting's PING, so that the connection stands, and then goes.
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with("PING") {
                    let _ = write.write_all(b"PONG\r\n").await;
                } else if line.starts_with("PUB") {
                    break;
                }
            }
            greeted.send_modify(|count| *count += 1);
        }
    });
    let sink = advertised.sink("127.0.0.1", |options| {
        options.url = format!("nats://127.0.0.1:{port}");
    });
    for _ in 0..3 {
        assert!(sink.open().await.is_err());
    }
    count.wait_for(|count| *count == 3).await.unwrap();
    assert_eq!(advertised.wire.accepted(), 0);
}

/// The same with a real cluster, whose second member takes clients in plain text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_the_cluster_that_is_not_configured_is_not_used() {
    let authority = Authority::new();
    let pair = authority.server(&["127.0.0.1"]);
    let elsewhere = Recorder::to("127.0.0.1:1").await;
    let ports = [(); 2].map(|()| crate::support::process::free_port());
    let routes = format!(
        "routes: [\"nats-route://127.0.0.1:{}\", \"nats-route://127.0.0.1:{}\"]",
        ports[0], ports[1]
    );
    let mut first = nats::Server::start_with(&format!(
        "cluster {{ name: c, listen: \"127.0.0.1:{}\", {routes} }}\n\
         tls {{ cert_file: \"{}\", key_file: \"{}\" }}",
        ports[0],
        pair.certificate.display(),
        pair.key.display()
    ))
    .await;
    let _second = nats::Server::start_with(&format!(
        "cluster {{ name: c, listen: \"127.0.0.1:{}\", {routes} }}\n\
         client_advertise: \"127.0.0.1:{}\"",
        ports[1],
        elsewhere.port()
    ))
    .await;
    let advertised = format!("127.0.0.1:{}", elsewhere.port());
    crate::support::eventually(SOON, "the first names the second", || async {
        let stream = tokio::net::TcpStream::connect(first.address())
            .await
            .unwrap();
        let mut greeting = String::new();
        let read = BufReader::new(stream).read_line(&mut greeting).await;
        match read.is_ok() && greeting.contains(&advertised) {
            true => Ok(()),
            false => Err(greeting),
        }
    })
    .await;
    let sink = Nats::new(Options {
        ca_file: Some(authority.ca()),
        create_stream: true,
        ..options(first.url())
    })
    .unwrap();
    // The two have to choose a leader before there can be a stream.
    let session = crate::support::eventually(SOON, "a session opens", || async {
        sink.open().await.map_err(|error| error.to_string())
    })
    .await;
    session.publish(&delivery(1), SOON).await.unwrap();
    first.kill9();
    tokio::time::timeout(SOON, session.lost()).await.unwrap();
    for _ in 0..3 {
        assert!(sink.open().await.is_err());
    }
    assert_eq!(elsewhere.accepted(), 0);
}
