//! Encryption as it is the same for databases and brokers: which hosts may be talked to in plain text, and
//! what to do about a certificate that is not accepted.

use std::net::IpAddr;

/// Does a connection to this host stay on this machine? By the name alone: what a name server says can be
/// forged, and is not asked.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches([']', '.']);
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost")
        }
    }
}

/// What to do about a certificate that was not accepted, by rustls's words.
pub(crate) fn mend(words: &str) -> &'static str {
    // An authority of the same name with another key is another authority.
    if words.contains("UnknownIssuer") || words.contains("BadSignature") {
        ": set ca_file to the authority that signed it"
    } else if words.contains("xpired") {
        ": renew it on the server"
    } else if words.contains("not valid for name") {
        ": write a host that the certificate names"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_leave_the_machine_is_loopback() {
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "localhost",
            "LocalHost.",
            "db.localhost",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "db",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "mylocalhost",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
