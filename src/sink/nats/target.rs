//! Which servers to connect to, with which credentials and which trust.

use std::path::Path;
use std::sync::Arc;

use async_nats::{ConnectOptions, ServerAddr};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use secrecy::{ExposeSecret, SecretString};

use super::Options;
use crate::files;
use crate::sink::SinkError;

/// Servers and credentials, checked; secrets in files are read for each connection.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) servers: Vec<ServerAddr>,
    options: Options,
    wants_tls: bool,
}

impl Target {
    /// Checks the options as far as that goes without I/O. User and password, or a token, in the URL
    /// are taken out of it and used where the options give none.
    pub(super) fn new(mut options: Options) -> Result<Self, SinkError> {
        let mut servers = Vec::new();
        for (at, part) in options.url.clone().split(',').map(str::trim).enumerate() {
            // The parser's words name the fault, never the text, which may hold a password.
            let addr = part.parse::<ServerAddr>().map_err(|error| {
                SinkError::new(format!("url: server {} is not valid: {error}", at + 1))
            })?;
            if !matches!(addr.scheme(), "nats" | "tls") || addr.host().is_empty() {
                return Err(SinkError::new(format!(
                    "url: server {} must look like nats://host:4222 or tls://host:4222",
                    at + 1
                )));
            }
            servers.push(take_user_info(addr, &mut options)?);
        }
        // From here on nothing may print it.
        options.url = shown(&servers);
        check_credentials(&options)?;
        Ok(Self {
            wants_tls: demands_tls(&options, &servers)?,
            servers,
            options,
        })
    }

    /// The servers, for messages.
    pub(super) fn shown(&self) -> &str {
        &self.options.url
    }

    /// Credentials and trust, read now.
    pub(super) async fn connect_options(&self) -> Result<ConnectOptions, SinkError> {
        let options = &self.options;
        let mut connect = ConnectOptions::new();
        let password = secret(options.password.as_ref(), options.password_file.as_deref()).await?;
        if let Some(user) = &options.user {
            connect = connect.user_and_password(user.clone(), password.unwrap_or_default());
        }
        if let Some(token) = secret(options.token.as_ref(), options.token_file.as_deref()).await? {
            connect = connect.token(token);
        }
        if let Some(file) = &options.creds_file {
            let text = read(file, files::secret_lines).await?;
            connect = connect.credentials(&text).map_err(|error| SinkError {
                message: format!("{} is not a credentials file: {error}", file.display()),
                source: None,
            })?;
        }
        let (roots, identity) = if self.wants_tls {
            (self.trusted().await?, self.identity().await?)
        } else {
            (RootCertStore::empty(), None)
        };
        // Given even when plain text is asked for: a server may insist on TLS, and async-nats would then use
        // rustls's process-wide provider, which is ambiguous (a panic) when two are compiled in.
        let tls = client_config(roots, identity)?;
        Ok(connect
            .require_tls(self.wants_tls)
            .tls_client_config(tls)
            // Where to connect is for the configuration to say, not for whoever answers first.
            .ignore_discovered_servers())
    }

    /// Is TLS demanded? A connection without it then fails, before anything secret is sent.
    pub(super) fn wants_tls(&self) -> bool {
        self.wants_tls
    }

    /// The given authority, or the system's.
    async fn trusted(&self) -> Result<RootCertStore, SinkError> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = &self.options.ca_file {
            for certificate in certificates(file).await? {
                roots.add(certificate).map_err(|error| {
                    failed(
                        format!("{} cannot be trusted: {error}", file.display()),
                        error,
                    )
                })?;
            }
            return Ok(roots);
        }
        // Some of the system's files may be unreadable; the rest still counts.
        let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs)
            .await
            .map_err(|error| failed("certificates could not be read".to_owned(), error))?;
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(SinkError::new(
                "no certificate authority found in the system: set ca_file",
            ));
        }
        Ok(roots)
    }

    /// The certificate to show, with its key.
    async fn identity(&self) -> Result<Option<Identity>, SinkError> {
        let options = &self.options;
        let (Some(chain), Some(key)) = (&options.client_cert_file, &options.client_key_file) else {
            return Ok(None);
        };
        let text = pem(key, "private key").await?;
        let found = PrivateKeyDer::from_pem_slice(&text);
        // The cause stays out: its words are about the key's text.
        let key = found.map_err(|_| {
            SinkError::new(format!("{} holds no usable private key", key.display()))
        })?;
        Ok(Some((certificates(chain).await?, key)))
    }
}

/// A certificate with those that vouch for it, and its key.
type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

async fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, SinkError> {
    let text = pem(file, "certificate").await?;
    CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| {
            failed(
                format!("{} holds no usable certificate: {error}", file.display()),
                error,
            )
        })
}

async fn pem(file: &Path, kind: &'static str) -> Result<Vec<u8>, SinkError> {
    let path = file.to_owned();
    let read = files::aside(move || files::pem(&path, kind)).await;
    let read = read.unwrap_or_else(|error| Err((error.to_string(), error)));
    read.map_err(|(words, error)| failed(words, error))
}

/// Is TLS demanded, by word or because something could leave the machine?
fn demands_tls(options: &Options, servers: &[ServerAddr]) -> Result<bool, SinkError> {
    let refuse = |words: &str| Err(SinkError::new(words));
    if options.client_cert_file.is_some() != options.client_key_file.is_some() {
        return refuse("client_cert_file and client_key_file belong together: one is missing");
    }
    let by_file = options.ca_file.is_some() || options.client_cert_file.is_some();
    let by_url = servers.iter().any(ServerAddr::tls_required);
    match options.tls {
        Some(false) if by_url => {
            refuse("the url asks for TLS and tls = false refuses it: keep one")
        }
        Some(false) if by_file => {
            refuse("with tls = false nothing is encrypted and certificates have no use: keep one")
        }
        Some(demanded) => Ok(demanded),
        None => {
            let leaves = |addr: &ServerAddr| !crate::tls::is_loopback(addr.host());
            Ok(by_url || by_file || servers.iter().any(leaves))
        }
    }
}

/// Moves user and password (or a token, which stands alone) from a URL to the options.
fn take_user_info(addr: ServerAddr, options: &mut Options) -> Result<ServerAddr, SinkError> {
    let mut url = addr.into_inner();
    let user = percent_decoded(url.username())?;
    let password = url.password().map(percent_decoded).transpose()?;
    if !user.is_empty() || password.is_some() {
        let has_own = options.user.is_some()
            || options.token.is_some()
            || options.token_file.is_some()
            || options.creds_file.is_some();
        match password {
            _ if has_own => {}
            Some(password) => {
                options.user = Some(user);
                let own = options.password.is_some() || options.password_file.is_some();
                if !own {
                    options.password = Some(SecretString::from(password));
                }
            }
            None => options.token = Some(SecretString::from(user)),
        }
        // These only fail for URLs that cannot have them.
        let _ = url.set_username("");
        let _ = url.set_password(None);
    }
    ServerAddr::from_url(url).map_err(|error| failed("url is not valid".to_owned(), error))
}

fn percent_decoded(text: &str) -> Result<String, SinkError> {
    let broken = || SinkError::new("url: user or password is not percent-encoded correctly");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        if *first == b'%' {
            let digits = more.get(..2).ok_or_else(broken)?;
            let digits = std::str::from_utf8(digits).map_err(|_| broken())?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
            rest = &more[2..];
        } else {
            bytes.push(*first);
            rest = more;
        }
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

fn shown(servers: &[ServerAddr]) -> String {
    let names: Vec<String> = servers
        .iter()
        .map(|addr| format!("{}://{}:{}", addr.scheme(), addr.host(), addr.port()))
        .collect();
    names.join(", ")
}

fn check_credentials(options: &Options) -> Result<(), SinkError> {
    let both = |what: &str| Err(SinkError::new(format!("{what} are both given: keep one")));
    if options.password.is_some() && options.password_file.is_some() {
        return both("password and password_file");
    }
    if options.token.is_some() && options.token_file.is_some() {
        return both("token and token_file");
    }
    let has_password = options.password.is_some() || options.password_file.is_some();
    if options.user.is_some() != has_password {
        return Err(SinkError::new(
            "user and password belong together: one is missing",
        ));
    }
    let has_token = options.token.is_some() || options.token_file.is_some();
    let ways = [
        options.user.is_some(),
        has_token,
        options.creds_file.is_some(),
    ];
    if ways.into_iter().filter(|given| *given).count() > 1 {
        return Err(SinkError::new(
            "user, token and creds_file exclude one another: keep one",
        ));
    }
    Ok(())
}

async fn secret(
    given: Option<&SecretString>,
    file: Option<&Path>,
) -> Result<Option<String>, SinkError> {
    match (given, file) {
        (Some(secret), _) => Ok(Some(secret.expose_secret().to_owned())),
        (None, Some(file)) => Ok(Some(read(file, files::secret).await?)),
        (None, None) => Ok(None),
    }
}

async fn read(file: &Path, how: fn(&Path) -> std::io::Result<String>) -> Result<String, SinkError> {
    let path = file.to_owned();
    let read = files::aside(move || how(&path)).await;
    read.flatten()
        .map_err(|error| failed(format!("{} cannot be read: {error}", file.display()), error))
}

fn client_config(
    roots: RootCertStore,
    identity: Option<Identity>,
) -> Result<ClientConfig, SinkError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(format!("TLS is not usable: {error}"), error))?
        .with_root_certificates(roots);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| {
            failed(
                format!("client_cert_file and client_key_file do not fit: {error}"),
                error,
            )
        }),
    }
}

fn failed(message: String, error: impl std::error::Error + Send + Sync + 'static) -> SinkError {
    SinkError {
        message,
        source: Some(Box::new(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::tests::options;
    use super::*;

    #[test]
    fn user_and_password_may_stand_in_the_url_and_are_taken_out_of_it() {
        let mut options = options("nats://us%40er:p%2Fss%23%25@a:1234, nats://b");
        let target = Target::new(options.clone()).unwrap();
        assert_eq!(target.options.user.as_deref(), Some("us@er"));
        let password = target.options.password.as_ref().unwrap();
        assert_eq!(password.expose_secret(), "p/ss#%");
        assert_eq!(target.shown(), "nats://a:1234, nats://b:4222");
        assert!(!format!("{target:?}").contains("p%2Fss"));
        options.user = Some("own".to_owned());
        options.password = Some(SecretString::from("own"));
        let target = Target::new(options).unwrap();
        assert_eq!(target.options.user.as_deref(), Some("own"));
        let token = Target::new(super::super::tests::options("nats://s3cret@a")).unwrap();
        assert_eq!(token.options.token.unwrap().expose_secret(), "s3cret");
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        for (url, words) in [
            ("", "must look like"),
            ("nats://user:s3cret@host:99999", "not valid"),
            ("http://user:s3cret@host", "not valid"),
            ("ws://user:s3cret@host", "must look like"),
            ("nats://a,,nats://b", "server 2"),
            ("nats://u:s3cret%zz@host", "percent-encoded"),
        ] {
            let error = Target::new(options(url)).expect_err(url).to_string();
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let mut only_user = options("nats://a");
        only_user.user = Some("u".to_owned());
        assert!(Target::new(only_user).is_err());
        let mut two_ways = options("nats://u:p@a");
        two_ways.creds_file = Some("x".into());
        assert!(
            Target::new(two_ways).is_ok(),
            "what stands beside the URL wins"
        );
        let mut two_ways = options("nats://a");
        two_ways.creds_file = Some("x".into());
        two_ways.token = Some(SecretString::from("t"));
        assert!(Target::new(two_ways).is_err());
    }

    #[test]
    fn plain_text_leaves_the_machine_only_when_that_is_said() {
        let demands = |url: &str, change: fn(&mut Options)| {
            let mut options = options(url);
            change(&mut options);
            Target::new(options).map(|target| target.wants_tls())
        };
        for (url, demanded) in [
            ("nats://127.0.0.1", false),
            ("nats://localhost:4222,nats://[::1]", false),
            ("nats://broker", true),
            ("nats://10.0.0.7", true),
            ("nats://0.0.0.0", true),
            ("nats://localhost,nats://broker", true),
            ("tls://127.0.0.1", true),
            ("tls://127.0.0.1,nats://127.0.0.1:1", true),
        ] {
            assert_eq!(demands(url, |_| ()).ok(), Some(demanded), "{url}");
            let always = demands(url, |options| options.tls = Some(true));
            assert_eq!(always.ok(), Some(true), "{url}");
            let plain = demands(url, |options| options.tls = Some(false));
            let expected = (!url.contains("tls://")).then_some(false);
            assert_eq!(plain.ok(), expected, "{url}");
        }
        let files: [fn(&mut Options); 2] = [
            |options| options.ca_file = Some("x".into()),
            |options| {
                options.client_cert_file = Some("x".into());
                options.client_key_file = Some("x".into());
            },
        ];
        for change in files {
            let demanded = demands("nats://127.0.0.1", change);
            assert!(demanded.expect("sound"), "a file asks for it");
        }
        let both = demands("nats://127.0.0.1", |options| {
            options.ca_file = Some("x".into());
            options.tls = Some(false);
        });
        assert!(both.is_err());
        let half = demands("nats://a", |options| {
            options.client_key_file = Some("x".into())
        });
        assert!(half.is_err());
    }
}
