//! Real nats-servers, 2.14 or newer, with JetStream, each for one test.
//!
//! The program is looked for in `OUTBOXD_NATS_SERVER`, in `.tools/` of the repository (where
//! `scripts/test` puts it) and in `PATH`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use async_nats::jetstream;
use futures_util::StreamExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;

use super::eventually;
use super::process::{Process, Spawn, free_port, port_clash};

/// Time for a server to answer, on a loaded machine.
const START: Duration = Duration::from_secs(30);

/// A running nats-server. Port and store stay the same over restarts; both end with the value.
#[derive(Debug)]
pub struct Server {
    port: u16,
    process: Option<Process>,
    snippet: String,
    directory: tempfile::TempDir,
}

/// One message of a stream.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Position in the stream.
    pub sequence: u64,
    /// Subject.
    pub subject: String,
    /// Headers, `Nats-Msg-Id` among them.
    pub headers: async_nats::HeaderMap,
    /// Body.
    pub payload: bytes::Bytes,
}

impl Stored {
    /// The first value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.as_str())
    }
}

impl Server {
    /// A server without users.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// A server with `snippet` at the end of its configuration, for instance `max_payload: 1024` or
    /// `authorization { users: [ … ] }`. A snippet with its own `jetstream` block replaces the usual
    /// one; it writes `$STORE` for the store's directory.
    pub async fn start_with(snippet: &str) -> Self {
        let mut server = Self {
            port: 0,
            process: None,
            snippet: snippet.to_owned(),
            directory: tempfile::Builder::new()
                .prefix("outboxd-nats-")
                .tempdir()
                .unwrap(),
        };
        for _ in 0..5 {
            server.port = free_port();
            match server.launch().await {
                Ok(()) => return server,
                Err(output) if port_clash(&output) => {}
                Err(output) => panic!("nats-server did not start; its output:\n{output}"),
            }
        }
        panic!("five ports in a row were taken by others");
    }

    /// `nats://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// `127.0.0.1:PORT`, for a proxy.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its name among servers.
    pub fn name(&self) -> String {
        format!("test{}", self.port)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.process
            .as_ref()
            .map(Process::output)
            .unwrap_or_default()
    }

    /// A client without credentials.
    pub async fn client(&self) -> async_nats::Client {
        async_nats::connect(self.url()).await.unwrap()
    }

    /// A JetStream context on a client of its own.
    pub async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(self.client().await)
    }

    /// Creates a stream with this configuration, as the server's API takes it.
    pub async fn create_stream(&self, config: serde_json::Value) -> jetstream::stream::Stream {
        let name = config["name"].as_str().unwrap().to_owned();
        let api = format!("$JS.API.STREAM.CREATE.{name}");
        let client = self.client().await;
        let answer = client
            .request(api, config.to_string().into())
            .await
            .unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        assert!(answer["error"].is_null(), "{answer}");
        self.jetstream().await.get_stream(name).await.unwrap()
    }

    /// Every message a stream holds at this moment, in its order. The stream is left as it is.
    pub async fn stored(&self, stream: &str) -> Vec<Stored> {
        let jetstream = self.jetstream().await;
        // A cluster is busy with itself for a while when one of it came back.
        let stream = eventually(START, "the stream can be looked at", || async {
            let found = jetstream.get_stream(stream).await;
            found.map_err(|error| error.to_string())
        });
        let stream = stream.await;
        let mut stored = Vec::new();
        if stream.cached_info().state.messages == 0 {
            return stored;
        }
        let consumer = eventually(START, "the stream can be read", || async {
            let everything = jetstream::consumer::pull::OrderedConfig::default();
            let created = stream.create_consumer(everything).await;
            created.map_err(|error| error.to_string())
        });
        let consumer = consumer.await;
        let mut messages = consumer.messages().await.unwrap();
        while let Some(message) = messages.next().await {
            let message = message.unwrap();
            let info = message.info().unwrap();
            let (sequence, pending) = (info.stream_sequence, info.pending);
            let (message, _) = message.split();
            stored.push(Stored {
                sequence,
                subject: message.subject.to_string(),
                headers: message.headers.unwrap_or_default(),
                payload: message.payload,
            });
            if pending == 0 {
                break;
            }
        }
        stored
    }

    /// A clean stop: connections are closed, the store is synced.
    pub async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal("TERM");
            process.wait_async(START).await;
        }
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9();
        }
    }

    /// Stops it for the operating system: connections stay open and nothing answers, until
    /// [`Self::thaw`].
    pub fn freeze(&mut self) {
        self.process.as_mut().unwrap().signal("STOP");
    }

    /// Ends [`Self::freeze`].
    pub fn thaw(&mut self) {
        self.process.as_mut().unwrap().signal("CONT");
    }

    /// Starts again on the same port and store; a server that still runs is stopped first. Returns when
    /// it accepts connections.
    pub async fn restart(&mut self) {
        self.stop().await;
        if let Err(output) = self.launch().await {
            panic!("nats-server did not come back; its output:\n{output}");
        }
    }

    /// Changes the snippet for the next [`Self::restart`].
    pub fn set_snippet(&mut self, snippet: &str) {
        snippet.clone_into(&mut self.snippet);
    }

    /// Changes the snippet of a server that runs on, as `nats-server --signal reload` does.
    pub fn reload(&mut self, snippet: &str) {
        self.set_snippet(snippet);
        self.configure();
        if let Some(process) = &mut self.process {
            process.signal("HUP");
        }
    }

    /// Writes the configuration, and says where.
    fn configure(&self) -> PathBuf {
        let store = self.directory.path().join("store").display().to_string();
        let jetstream =
            if self.snippet.contains("jetstream {") || self.snippet.contains("jetstream:") {
                String::new()
            } else {
                "jetstream { store_dir: \"$STORE\" }\n".to_owned()
            };
        let configuration = format!(
            "listen: \"{}\"\nserver_name: \"{}\"\n{jetstream}{}\n",
            self.address(),
            self.name(),
            self.snippet
        )
        .replace("$STORE", &store);
        let file = self.directory.path().join("nats.conf");
        std::fs::write(&file, configuration).unwrap();
        file
    }

    /// Starts the process and waits for its greeting; its output if it ends instead.
    async fn launch(&mut self) -> Result<(), String> {
        let file = self.configure();
        let log = self.directory.path().join("log");
        let _ = std::fs::remove_file(&log);
        let process = Spawn::new(program(), log)
            .args(["-c".to_owned(), file.display().to_string()])
            .current_dir(self.directory.path())
            .remove(self.directory.path())
            .start();
        let name = format!("\"{}\"", self.name());
        let process = self.process.insert(process);
        let end = tokio::time::Instant::now() + START;
        let address = format!("127.0.0.1:{}", self.port);
        loop {
            let state = match tokio::time::timeout(Duration::from_secs(2), greeting(&address)).await
            {
                // Another server may have got the port; the name in the greeting tells.
                Ok(Ok(line)) if line.contains(&name) => return Ok(()),
                Ok(Ok(line)) => format!("another server answers: {line}"),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no greeting within 2 s".to_owned(),
            };
            if process.exited().is_some() {
                return Err(process.tail());
            }
            assert!(
                tokio::time::Instant::now() < end,
                "nats-server does not answer: {state}; its output:\n{}",
                process.tail()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The `INFO {…}` line a nats-server sends first. It listens only after JetStream has recovered.
async fn greeting(address: &str) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(TcpStream::connect(address).await?)
        .read_line(&mut line)
        .await?;
    Ok(line)
}

/// The nats-server to use.
fn program() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let named = std::env::var_os("OUTBOXD_NATS_SERVER").map(PathBuf::from);
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/nats-server");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::env::split_paths(&path).map(|directory| directory.join("nats-server"));
        let candidates: Vec<PathBuf> = named.into_iter().chain([tools]).chain(paths).collect();
        candidates
            .into_iter()
            .find(|candidate| version(candidate).is_some_and(|version| version >= (2, 14)))
            .expect("no nats-server of version 2.14 or newer: run scripts/test, or scripts/install-nats")
    })
}

/// `nats-server: v2.15.1` is (2, 15).
fn version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text
        .split_once(": v")?
        .1
        .split('.')
        .map(|number| number.trim().parse().ok());
    Some((numbers.next()??, numbers.next()??))
}
