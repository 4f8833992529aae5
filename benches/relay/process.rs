//! A relay in a process of its own, so that its memory and processor time are counted alone: this program, started
//! again with a hidden argument, and steered by lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use outboxd::sink::nats::Mode;
use outboxd::source::PublishedKeep;

/// Before what the relay is to do, on its command line.
pub const ARGUMENT: &str = "--relay-process";

/// Far more than anything takes.
pub const LONG: Duration = Duration::from_secs(1_800);

/// What the relay does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Relayed {
    pub from: From,
    pub to: To,
    pub keep: PublishedKeep,
    /// Fails every event of the key `poison`, and charges it.
    pub poison: bool,
    /// Count the calls of the source.
    pub count: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum From {
    Postgres { url: String, listen: bool },
    Sqlite { path: String },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum To {
    Nats { url: String, mode: Mode },
    File { path: String },
}

/// The other process. It ends with this value: its input ends.
pub struct Process {
    child: Child,
    input: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Process {
    /// A process that is ready to start its relay.
    pub async fn ready(relayed: &Relayed) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(ARGUMENT)
            .arg(serde_json::to_string(relayed).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || show(log));
        let (tell, answers) = mpsc::channel(8);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.blocking_send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = Self {
            child,
            input,
            answers,
        };
        assert_eq!(process.answer().await, "ready");
        process
    }

    /// With its relay started.
    pub async fn start(relayed: &Relayed) -> Self {
        let mut process = Self::ready(relayed).await;
        process.ask("start").await;
        process
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and waits for the answer to it.
    pub async fn ask(&mut self, word: &str) -> String {
        writeln!(self.input, "{word}").unwrap();
        self.answer().await
    }

    async fn answer(&mut self) -> String {
        tokio::time::timeout(LONG, self.answers.recv())
            .await
            .expect("the relay's process answers in time")
            .expect("the relay's process lives")
    }

    /// Shuts the relay down, and waits for its end.
    pub async fn stop(mut self) {
        self.ask("stop").await;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the relay's process ended with {status}");
    }

    /// The most memory that it has had so far, and what it has now, in megabytes.
    pub fn memory(&self) -> (f64, f64) {
        let path = format!("/proc/{}/status", self.id());
        let status = std::fs::read_to_string(path).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kilobytes: f64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kilobytes / 1_000.0 * 1.024)
        };
        let megabytes = |name| field(name).unwrap_or(f64::NAN);
        (megabytes("VmHWM:"), megabytes("VmRSS:"))
    }
}

/// Passes on what is not in the order of things: its log tells of every start and end otherwise.
fn show(log: impl BufRead) {
    for line in log.lines().map_while(Result::ok) {
        if !line.contains(" INFO ") {
            eprintln!("    {line}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a measurement that failed; a process that has ended by itself does not mind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
