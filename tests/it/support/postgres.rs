//! Real PostgreSQL servers, 15 or newer, in temporary directories.
//!
//! - [`server()`] is shared by the whole test binary; take a fresh [`Database`] from it.
//! - [`Server::start_own`] is for tests that stop, kill or restart their server, or need settings.
//! - [`Server::standby`] follows such a server, and can take its place.
//!
//! Everybody here has the role that he would have in earnest, see [`roles`](super::roles); a superuser is for faults and
//! settings. These roles and the superuser `postgres` log in without a password; every other role needs one
//! (`create role x login password 'y'`, then [`Database::url_as`]). When the tests run as root the
//! server runs as user `postgres` or `nobody`, because it refuses root.
//!
//! The programs are looked for in `OUTBOXD_POSTGRES_BIN`, in `/usr/lib/postgresql/*/bin` and in `PATH`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::OnceCell;

use super::process::{Process, Spawn, free_port, port_clash};
use super::roles::Role;

mod standby;

/// Time for a server to answer, on a loaded machine.
const START: Duration = Duration::from_secs(60);

/// What every server here runs with: quick, since nothing survives the test anyway.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_connections", "300"),
    ("max_prepared_transactions", "20"),
    ("shared_buffers", "32MB"),
    // Shared memory in the data directory: a killed server leaves nothing in /dev/shm.
    ("dynamic_shared_memory_type", "mmap"),
    ("log_line_prefix", "%m [%p] %d "),
    ("timezone", "UTC"),
];

/// The server that the tests of this binary share. It is never stopped or reconfigured; it ends with
/// the test process.
pub async fn server() -> &'static Server {
    static SHARED: OnceCell<Server> = OnceCell::const_new();
    SHARED.get_or_init(|| Server::start_own(&[])).await
}

/// A running PostgreSQL.
#[derive(Debug)]
pub struct Server {
    directory: Directory,
    programs: PathBuf,
    settings: Vec<(String, String)>,
    port: u16,
    process: Option<Process>,
}

/// A database of one test. It is not dropped; the server goes as a whole.
#[derive(Debug, Clone)]
pub struct Database {
    /// The relay's URL.
    pub url: String,
    /// Its name.
    pub name: String,
    port: u16,
}

impl Server {
    /// A server of this test alone, with settings on top of the usual ones, for instance
    /// `&[("wal_level", "logical")]`.
    pub async fn start_own(settings: &[(&str, &str)]) -> Self {
        let programs = programs();
        let directory = Directory::new("outboxd-pg-");
        initdb(&programs, &directory);
        let mut server = Self {
            directory,
            programs,
            settings: settings
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            port: 0,
            process: None,
        };
        server.launch_on_a_free_port().await;
        let roles = Role::ALL.map(|role| format!("create role {} login", role.name()));
        server.execute(&roles.join("; ")).await;
        server
    }

    async fn launch_on_a_free_port(&mut self) {
        for _ in 0..5 {
            self.port = free_port();
            match self.launch().await {
                Ok(()) => return,
                Err(output) if port_clash(&output) => self.process = None,
                Err(output) => panic!("PostgreSQL did not start; its output:\n{output}"),
            }
        }
        panic!("five ports in a row were taken by others");
    }

    /// A fresh database with a name that no other test has.
    pub async fn database(&self) -> Database {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.database_named(&name).await
    }

    /// A fresh database with this name, on a server of this test alone.
    pub async fn database_named(&self, name: &str) -> Database {
        // One by one: a database cannot be created in a transaction.
        self.execute(&format!("create database {name}")).await;
        let owner = Role::Owner.name();
        self.execute(&format!("grant create on database {name} to {owner}"))
            .await;
        Database {
            url: url(self.port, Role::Relay.name(), None, name),
            name: name.to_owned(),
            port: self.port,
        }
    }

    /// Runs SQL (several statements are fine) as superuser in the database `postgres`.
    pub async fn execute(&self, sql: &str) {
        let mut connection = PgConnection::connect(&url(self.port, "postgres", None, "postgres"))
            .await
            .unwrap();
        run(&mut connection, sql).await;
        connection.close().await.unwrap();
    }

    /// The postmaster's process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// The TCP port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`, for a proxy.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The directory with the unix socket.
    pub fn socket_directory(&self) -> &Path {
        &self.directory.path
    }

    /// Where its programs are, for `pg_dump` and the like.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        self.process
            .as_ref()
            .map(Process::output)
            .unwrap_or_default()
    }

    /// A fast shutdown: sessions are cut, everything committed is on disk.
    pub async fn stop_fast(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal("INT");
            process.wait_async(START).await;
        }
    }

    /// `kill -9` of the postmaster: a crash; sessions end within moments.
    pub async fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9();
        }
    }

    /// Starts again on the same port and data, after [`Self::stop_fast`] or [`Self::kill9`]; a server
    /// that still runs is stopped first. Returns when it accepts connections.
    pub async fn restart(&mut self) {
        self.stop_fast().await;
        let end = tokio::time::Instant::now() + START;
        loop {
            match self.launch().await {
                Ok(()) => return,
                // Sessions of a killed postmaster hold its memory until they have noticed.
                Err(output) => assert!(
                    tokio::time::Instant::now() < end,
                    "PostgreSQL did not come back; its output:\n{output}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts the process and waits until it answers; its output if it ends instead.
    async fn launch(&mut self) -> Result<(), String> {
        let mut command = self
            .directory
            .as_server_user(&self.programs.join("postgres"));
        command.extend(
            ["-D", &self.directory.data(), "-k", &self.directory.text()].map(str::to_owned),
        );
        command.extend(["-p".to_owned(), self.port.to_string()]);
        let usual = SETTINGS.iter().map(|(k, v)| format!("{k}={v}"));
        let own = self.settings.iter().map(|(k, v)| format!("{k}={v}"));
        for setting in usual.chain(own) {
            command.extend(["-c".to_owned(), setting]);
        }
        let log = self.directory.path.join("log");
        let _ = std::fs::remove_file(&log);
        let process = Spawn::new(command.remove(0), log)
            .args(command)
            .current_dir(&self.directory.path)
            // An immediate shutdown, which still gives shared memory back.
            .last_signal("QUIT")
            .remove(&self.directory.path)
            .start();
        let process = self.process.insert(process);
        let end = tokio::time::Instant::now() + START;
        loop {
            let attempt = PgConnection::connect(&url(self.port, "postgres", None, "postgres"));
            let state = match tokio::time::timeout(Duration::from_secs(5), attempt).await {
                Ok(Ok(connection)) if process.exited().is_none() => {
                    let _ = connection.close().await;
                    return Ok(());
                }
                Ok(Ok(_)) => "somebody else answers on its port".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer within 5 s".to_owned(),
            };
            if process.exited().is_some() {
                return Err(process.tail());
            }
            assert!(
                tokio::time::Instant::now() < end,
                "PostgreSQL does not answer: {state}; its output:\n{}",
                process.tail()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Database {
    /// The URL of one of the usual roles.
    pub fn url_of(&self, role: Role) -> String {
        url(self.port, role.name(), None, &self.name)
    }

    /// A connection as one of the usual roles.
    pub async fn connect_as(&self, role: Role) -> PgConnection {
        PgConnection::connect(&self.url_of(role)).await.unwrap()
    }

    /// A connection as the owner.
    pub async fn connect(&self) -> PgConnection {
        self.connect_as(Role::Owner).await
    }

    /// A connection as a writer.
    pub async fn writer(&self) -> PgConnection {
        self.connect_as(Role::Writer).await
    }

    /// A connection as superuser, for what only that one can do.
    pub async fn superuser(&self) -> PgConnection {
        let url = url(self.port, "postgres", None, &self.name);
        PgConnection::connect(&url).await.unwrap()
    }

    /// Runs SQL (several statements are fine) as the owner on a connection of its own.
    pub async fn execute(&self, sql: &str) {
        run_and_close(self.connect().await, sql).await;
    }

    /// The same as a writer.
    pub async fn write(&self, sql: &str) {
        run_and_close(self.writer().await, sql).await;
    }

    /// The same as superuser.
    pub async fn execute_as_superuser(&self, sql: &str) {
        run_and_close(self.superuser().await, sql).await;
    }

    /// The URL for another role.
    pub fn url_as(&self, role: &str, password: &str) -> String {
        url(self.port, role, Some(password), &self.name)
    }

    /// The relay's URL by way of a proxy (or a pooler) on another port.
    pub fn url_through(&self, port: u16) -> String {
        url(port, Role::Relay.name(), None, &self.name)
    }
}

fn url(port: u16, role: &str, password: Option<&str>, name: &str) -> String {
    let password = password
        .map(|password| format!(":{password}"))
        .unwrap_or_default();
    format!("postgres://{role}{password}@127.0.0.1:{port}/{name}")
}

async fn run_and_close(mut connection: PgConnection, sql: &str) {
    run(&mut connection, sql).await;
    connection.close().await.unwrap();
}

async fn run(connection: &mut PgConnection, sql: &str) {
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
    {
        panic!("{error}, in: {sql}");
    }
}

/// The server's directory: data, socket, log. Owned by the user the server runs as.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    _keep: tempfile::TempDir,
    /// uid and gid to run as, when this process is root.
    user: Option<(u32, u32)>,
}

impl Directory {
    pub(super) fn new(prefix: &str) -> Self {
        // The path of a unix socket may have 107 bytes.
        let parent = Some(std::env::temp_dir()).filter(|path| path.as_os_str().len() < 60);
        let keep = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(parent.unwrap_or_else(|| PathBuf::from("/tmp")))
            .unwrap();
        let user = is_root().then(server_user);
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(keep.path(), Some(uid), Some(gid)).unwrap();
        }
        Self {
            path: keep.path().to_owned(),
            _keep: keep,
            user,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn text(&self) -> String {
        self.path.display().to_string()
    }

    fn data(&self) -> String {
        self.path.join("data").display().to_string()
    }

    /// The command line that runs `program` as the server's user, without a process in between.
    pub(super) fn as_server_user(&self, program: &Path) -> Vec<String> {
        let mut command = Vec::new();
        if let Some((uid, gid)) = self.user {
            command.push("setpriv".to_owned());
            command.push(format!("--reuid={uid}"));
            command.push(format!("--regid={gid}"));
            command.extend(["--clear-groups", "--"].map(str::to_owned));
        }
        command.push(program.display().to_string());
        command
    }

    /// Runs a program that makes the data directory.
    fn fill_by(&self, program: &Path, arguments: &[&str]) {
        let mut command = self.as_server_user(program);
        command.extend(["-D", &self.data()].map(str::to_owned));
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let output = Command::new(&command[0])
            .args(&command[1..])
            .current_dir(&self.path)
            .output()
            .unwrap_or_else(|error| panic!("running {command:?}: {error}"));
        assert!(
            output.status.success(),
            "{} failed: {}{}",
            program.display(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn initdb(programs: &Path, directory: &Directory) {
    let arguments = [
        "-U",
        "postgres",
        "--auth=trust",
        "--no-sync",
        "--encoding=UTF8",
        "--locale=C",
    ];
    directory.fill_by(&programs.join("initdb"), &arguments);
    let trusted = Role::ALL.map(Role::name).join(",");
    std::fs::write(
        Path::new(&directory.data()).join("pg_hba.conf"),
        format!(
            "local all,replication postgres,{trusted} trust\n\
             host all,replication postgres,{trusted} 127.0.0.1/32 trust\n\
             local all,replication all scram-sha-256\n\
             host all,replication all 127.0.0.1/32 scram-sha-256\n"
        ),
    )
    .unwrap();
}

/// The directory of the newest PostgreSQL, 15 or newer.
fn programs() -> PathBuf {
    if let Some(directory) = std::env::var_os("OUTBOXD_POSTGRES_BIN") {
        return PathBuf::from(directory);
    }
    let installed = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<(u32, PathBuf)> = installed
        .map(|entry| entry.path().join("bin"))
        .chain(std::env::split_paths(&path))
        // A link to one program says where the others are.
        .filter_map(|directory| directory.join("initdb").canonicalize().ok())
        .filter_map(|program| program.parent().map(Path::to_path_buf))
        .filter_map(|directory| Some((major_version(&directory.join("postgres"))?, directory)))
        .filter(|(version, _)| *version >= 15)
        .collect();
    found.sort();
    match found.pop() {
        Some((_, directory)) => directory,
        None => {
            panic!("no PostgreSQL server of version 15 or newer: run scripts/test, or install one")
        }
    }
}

/// `postgres (PostgreSQL) 15.18 (Debian …)` is 15.
fn major_version(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().nth(2)?;
    version
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    // The second number is the effective one.
    uids.and_then(|uids| uids.split_whitespace().nth(1)) == Some("0")
}

/// uid and gid of `postgres`, else of `nobody`.
fn server_user() -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let fields: Vec<&str> = users
            .lines()
            .map(|line| line.split(':').collect())
            .find(|f: &Vec<&str>| f[0] == name)?;
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    ids("postgres")
        .or_else(|| ids("nobody"))
        .expect("a user postgres or nobody, since PostgreSQL refuses root")
}
