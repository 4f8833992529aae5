//! Checks of `[databases.NAME]`.

use std::collections::BTreeMap;

use super::Findings;
use crate::config::address::DatabaseAddress;
use crate::config::{Config, Database, Tls, Wake, build};

impl Findings<'_> {
    pub(super) fn database(&mut self, name: &str, database: &Database, config: &Config) {
        let section = format!("databases.{name}");
        self.exclusive(&section, &["url", "url_file"], "keep one");
        self.exclusive(&section, &["password", "password_file"], "keep one");
        let by_url = database.url.is_some() || database.url_file.is_some();
        if by_url {
            let fields = ["host", "port", "user", "dbname"];
            for key in fields
                .iter()
                .filter(|key| self.is_given(&section, key))
                .copied()
                .collect::<Vec<_>>()
            {
                self.add(
                    &format!("{section}.{key}"),
                    "a database is given either by its url or by host, port, user and dbname, not by both",
                );
            }
        } else if database.host.is_none() {
            self.add(&section, "no address: set `url`, `url_file` or `host`");
            return;
        }
        let before = self.problems.len();
        match database.address() {
            Err(words) => {
                let key = if database.url.is_some() {
                    "url"
                } else {
                    "url_file"
                };
                let words = match words.strip_prefix("invalid url") {
                    Some(rest) => format!("invalid url for database {name}{rest}"),
                    None => words,
                };
                self.add(&format!("{section}.{key}"), words);
            }
            Ok(DatabaseAddress::Sqlite(_)) if !cfg!(feature = "sqlite") => {
                self.add(&section, "this build has no sqlite source");
            }
            Ok(DatabaseAddress::Postgres { .. }) if !cfg!(feature = "postgres") => {
                self.add(&section, "this build has no postgres source");
            }
            Ok(DatabaseAddress::Sqlite(_)) => self.sqlite(&section),
            Ok(DatabaseAddress::Postgres {
                with_password,
                with_tls,
            }) => self.postgres(&section, database, with_password, with_tls),
        }
        // What the source itself refuses, once there is nothing to say about the fields.
        if self.problems.len() == before
            && self.sound
            && self.broken.spares(&section)
            && let Err(refusal) = build::outbox(name, database, config)
        {
            self.problems.extend(refusal.problems);
        }
        self.spans(
            &section,
            &[
                ("poll_max", Some(database.poll_max)),
                ("fallback_poll", Some(database.fallback_poll)),
                ("quiet_after", database.quiet_after),
                ("sweep_every", Some(database.sweep_every)),
                ("statement_timeout", Some(database.statement_timeout)),
            ],
        );
    }

    /// Keys that an SQLite file has no use for.
    fn sqlite(&mut self, section: &str) {
        const NOT_FOR_SQLITE: [&str; 11] = [
            "password",
            "password_file",
            "tls",
            "ca_file",
            "client_cert_file",
            "client_key_file",
            "schema",
            "gap_guard",
            "wake",
            "pooler",
            "max_connections",
        ];
        for key in NOT_FOR_SQLITE {
            if self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "an sqlite database has no such key; it belongs to postgres",
                );
            }
        }
    }

    fn postgres(
        &mut self,
        section: &str,
        database: &Database,
        with_password: bool,
        with_tls: bool,
    ) {
        for key in ["password", "password_file"] {
            if with_password && self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "the url holds a password already; keep one",
                );
            }
        }
        for key in ["tls", "ca_file", "client_cert_file", "client_key_file"] {
            if with_tls && self.is_given(section, key) {
                self.add(
                    &format!("{section}.{key}"),
                    "the url says something about encryption already; keep one",
                );
            }
        }
        self.encryption(section, database);
        if database.schema.is_empty()
            || database.schema.len() > 63
            || database.schema.contains('\0')
        {
            self.add(
                &format!("{section}.schema"),
                "a schema's name has 1 to 63 bytes",
            );
        }
        if database.max_connections < 2 {
            self.add(
                &format!("{section}.max_connections"),
                "at least 2: leases are renewed while a statement runs",
            );
        }
        if database.quiet_after.is_some() && !database.listens() {
            let other = if database.wake == Wake::Poll {
                "wake = \"poll\""
            } else {
                "a pooler"
            };
            self.add(
                &format!("{section}.quiet_after"),
                format_args!(
                    "with {other} nothing would wake a quiet database; it needs wake = \"auto\" and pooler = \
                     \"none\""
                ),
            );
        }
    }

    /// Files that would have no effect, which nobody would notice.
    fn encryption(&mut self, section: &str, database: &Database) {
        self.pair(section, "client_cert_file", "client_key_file");
        let unchecked = match database.tls {
            Some(Tls::Disable) => "disable",
            Some(Tls::Prefer) => "prefer",
            Some(Tls::Require) => "require",
            Some(Tls::VerifyCa | Tls::VerifyFull) | None => return,
        };
        let plain = database.tls == Some(Tls::Disable);
        if self.is_given(section, "ca_file") {
            self.add(
                &format!("{section}.ca_file"),
                format_args!(
                    "with tls = \"{unchecked}\" no certificate is checked; set tls to \"verify-full\", or \
                     leave it out"
                ),
            );
        }
        if plain && self.is_given(section, "client_cert_file") {
            self.add(
                &format!("{section}.client_cert_file"),
                "with tls = \"disable\" no certificate is shown; set tls to \"verify-full\", or leave it out",
            );
        }
    }

    /// Two names for one outbox: the two would take each other's leases for ever.
    pub(super) fn same_outbox_twice(&mut self, config: &Config) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        for (name, database) in &config.databases {
            let Some(outbox) = database.place() else {
                continue;
            };
            if let Some(first) = seen.insert(outbox, name) {
                self.add(
                    &format!("databases.{name}"),
                    format_args!("the same outbox as `databases.{first}`; keep one"),
                );
            }
        }
    }
}
