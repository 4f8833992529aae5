//! TLS: required means required, a private authority works, a wrong name does not.

use std::path::Path;

use outboxd::sink::Sink;
use outboxd::sink::nats::{Nats, Options};
use outboxd::testing::sink::delivery;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::bench::{SOON, options};
use crate::support::nats;

/// An authority and a certificate for `names`, as files of `directory`.
fn certificates(directory: &Path, names: &[&str]) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    for (file, pem) in [
        ("ca.pem", signed.pem()),
        ("server.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        std::fs::write(directory.join(file), pem).unwrap();
    }
}

async fn server(directory: &Path) -> nats::Server {
    let file = |name| directory.join(name).display().to_string();
    nats::Server::start_with(&format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}",
        file("server.pem"),
        file("key.pem")
    ))
    .await
}

fn sink(server: &nats::Server, change: impl FnOnce(&mut Options)) -> Nats {
    let mut options = Options {
        create_stream: true,
        ..options(server.url())
    };
    change(&mut options);
    Nats::new(options).unwrap()
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path(), &["127.0.0.1"]);
    let server = server(directory.path()).await;
    let ca_file = directory.path().join("ca.pem");
    let trusting = sink(&server, |options| {
        options.tls = true;
        options.ca_file = Some(ca_file);
    });
    let session = trusting.open().await.unwrap();
    session.publish(&delivery(1), SOON).await.unwrap();
    session.close().await;
    let error = |sink: Nats| async move { sink.open().await.err().unwrap().to_string() };
    let unknown = error(sink(&server, |options| options.tls = true)).await;
    assert!(unknown.contains("certificate"), "{unknown}");
    let plain = error(sink(&server, |_| ())).await;
    assert!(plain.contains("set tls = true"), "{plain}");
    let missing = error(sink(&server, |options| {
        options.ca_file = Some("/none".into())
    }))
    .await;
    assert!(missing.contains("/none"), "{missing}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path(), &["elsewhere.example"]);
    let server = server(directory.path()).await;
    let ca_file = directory.path().join("ca.pem");
    let error = sink(&server, |options| options.ca_file = Some(ca_file))
        .open()
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn tls_that_was_asked_for_is_not_given_up() {
    let server = nats::Server::start().await;
    for url in [server.url(), server.url().replace("nats://", "tls://")] {
        let asking = sink(&server, |options| {
            options.tls = !url.starts_with("tls://");
            options.url = url.clone();
        });
        assert!(asking.open().await.is_err(), "{url}");
    }
    assert!(server.jetstream().await.get_stream("EVT").await.is_err());
}
