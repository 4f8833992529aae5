//! Certificates, made when a test runs.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};

/// An authority with a directory for its files.
pub struct Authority {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, uuid::Uuid::new_v4().to_string());
        let signed = params.self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), signed.pem()).unwrap();
        Self {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// A server's certificate for these names and addresses.
    pub fn server(&self, names: &[&str]) -> Pair {
        self.sign("server", names, |_| ())
    }

    /// The same, but its time is over.
    pub fn expired(&self, names: &[&str]) -> Pair {
        self.sign("expired", names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }

    /// A client's certificate, whose common name is `name`.
    pub fn client(&self, name: &str) -> Pair {
        self.sign("client", &[], |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    fn sign(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Pair {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        // One authority signs several of a kind.
        let file = format!("{file}-{}", uuid::Uuid::new_v4().simple());
        let pair = Pair {
            certificate: self.path(&format!("{file}.pem")),
            key: self.path(&format!("{file}.key")),
        };
        std::fs::write(&pair.certificate, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Copies a file to where a server that runs as another user can read it, and nobody else.
pub fn hand_over(from: &Path, to: &Path) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    std::fs::copy(from, to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600)).unwrap();
    let owner = std::fs::metadata(to.parent().unwrap()).unwrap();
    std::os::unix::fs::chown(to, Some(owner.uid()), Some(owner.gid())).unwrap();
}
