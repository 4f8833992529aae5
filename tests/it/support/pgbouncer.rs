//! A real PgBouncer in transaction mode in front of a PostgreSQL of these tests.
//!
//! The program is looked for in `PATH` and in `/usr/sbin`, where Debian puts it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::postgres::{Database, Directory, Server};
use super::process::{Process, Spawn, free_port, port_clash};
use super::roles::Role;

/// A running PgBouncer. It lets every database of its server through, as the relay.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    process: Process,
    _directory: Directory,
}

impl PgBouncer {
    /// In transaction mode, with few server connections so that clients do share them; `settings` are
    /// lines for its `[pgbouncer]` section and win.
    pub async fn start(server: &Server, settings: &str) -> Self {
        for _ in 0..5 {
            match Self::launch(server, settings, free_port()).await {
                Ok(running) => return running,
                Err(output) if port_clash(&output) => {}
                Err(output) => panic!("PgBouncer did not start; its output:\n{output}"),
            }
        }
        panic!("five ports in a row were taken by others");
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of `database` by way of it.
    pub fn url(&self, database: &Database) -> String {
        database.url_through(self.port)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process.output()
    }

    async fn launch(server: &Server, settings: &str, port: u16) -> Result<Self, String> {
        let directory = Directory::new("outboxd-pgbouncer-");
        let file = directory.path().join("pgbouncer.ini");
        std::fs::write(
            &file,
            format!(
                "[databases]\n* = host=127.0.0.1 port={} user={}\n\
                 [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\n\
                 max_client_conn = 200\n{settings}\n",
                server.port(),
                Role::Relay.name()
            ),
        )
        .unwrap();
        let mut command = directory.as_server_user(&program());
        command.push(file.display().to_string());
        let log = directory.path().join("log");
        let process = Spawn::new(command.remove(0), log)
            .args(command)
            .current_dir(directory.path())
            .remove(directory.path())
            .start();
        let mut running = Self {
            port,
            process,
            _directory: directory,
        };
        let url = format!("postgres://postgres@127.0.0.1:{port}/pgbouncer");
        let end = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            if running.process.exited().is_some() {
                return Err(running.process.tail());
            }
            // Its console: it answers by itself, whatever the server behind it does.
            let attempt = PgConnection::connect(&url);
            let state = match tokio::time::timeout(Duration::from_secs(2), attempt).await {
                Ok(Ok(_)) => return Ok(running),
                // Even a refusal at login is an answer.
                Ok(Err(sqlx::Error::Database(_) | sqlx::Error::Protocol(_))) => return Ok(running),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer within 2 s".to_owned(),
            };
            assert!(
                tokio::time::Instant::now() < end,
                "PgBouncer does not answer: {state}; its output:\n{}",
                running.process.tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join("pgbouncer"))
        .find(|program| Path::new(program).is_file())
        .expect("no pgbouncer: run scripts/test, or install one")
}
