//! Child processes that cannot outlive the tests, free ports, and captured output.
//!
//! Beside every child stands a guardian: a small `sh` that holds the reading end of a pipe whose writing
//! end only the test process has. However the test process ends, `kill -9` included, the guardian reads
//! the end of the file, ends the child and removes its directory. The child tells its process id into
//! the same pipe before it becomes the program, so there is no moment in which nobody would end it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{PipeWriter, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

/// Tells the process id into the guardian's pipe (its standard output), then becomes the program.
const LAUNCHER: &str = r#"echo "$$"; log=$1; shift; exec "$@" >>"$log" 2>&1 </dev/null"#;

/// `$1` the signal to try first, `$2` the directory to remove or nothing.
const GUARDIAN: &str = r#"
trap '' INT TERM HUP QUIT
read -r pid || exit 0
read -r word && [ "$word" = done ] && exit 0
kill -s "$1" "$pid" 2>/dev/null
tries=0
while kill -0 "$pid" 2>/dev/null && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -s KILL -- "-$pid" "$pid" 2>/dev/null
if [ -n "$2" ]; then
    tries=0
    while [ -e "$2" ] && [ $tries -lt 20 ]; do rm -rf -- "$2" 2>/dev/null || sleep 0.1; tries=$((tries + 1)); done
fi
"#;

/// How to start a [`Process`].
#[derive(Debug)]
pub struct Spawn {
    program: PathBuf,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    current_dir: Option<PathBuf>,
    log: PathBuf,
    last_signal: &'static str,
    remove: Option<PathBuf>,
}

impl Spawn {
    /// `program` with its output appended to the file `log`.
    pub fn new(program: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            current_dir: None,
            log: log.into(),
            last_signal: "KILL",
            remove: None,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.current_dir = Some(directory.into());
        self
    }

    /// The signal that guardian and `Drop` try first (5 s at most) before `KILL`; `KILL` by default.
    pub fn last_signal(mut self, signal: &'static str) -> Self {
        self.last_signal = signal;
        self
    }

    /// A directory the guardian removes if the test process ends before the child.
    pub fn remove(mut self, directory: impl Into<PathBuf>) -> Self {
        self.remove = Some(directory.into());
        self
    }

    /// Starts it.
    pub fn start(self) -> Process {
        let (reader, mut pipe) = std::io::pipe().unwrap();
        let guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian", self.last_signal])
            .arg(self.remove.as_deref().unwrap_or(Path::new("")))
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .unwrap();
        File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", LAUNCHER, "launcher"])
            .arg(&self.log)
            .arg(&self.program)
            .args(&self.args)
            .envs(self.envs)
            .stdin(Stdio::null())
            .stdout(pipe.try_clone().unwrap())
            .stderr(File::options().append(true).open(&self.log).unwrap())
            // A Ctrl-C at the terminal is for the test process; the guardian does the rest in order.
            .process_group(0);
        if let Some(directory) = &self.current_dir {
            command.current_dir(directory);
        }
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = writeln!(pipe, "0\ndone");
                panic!("starting {}: {error}", self.program.display());
            }
        };
        Process {
            child,
            guardian,
            pipe: Some(pipe),
            log: self.log,
            name: self.program.display().to_string(),
            last_signal: self.last_signal,
            status: None,
        }
    }
}

/// A running child. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    guardian: Child,
    pipe: Option<PipeWriter>,
    log: PathBuf,
    name: String,
    last_signal: &'static str,
    status: Option<ExitStatus>,
}

impl Process {
    /// The program's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status if it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none()
            && let Some(status) = self.child.try_wait().unwrap()
        {
            self.ended(status);
        }
        self.status
    }

    /// Sends a signal by name: `TERM`, `INT`, `KILL`, `STOP`, `CONT`. Nothing happens if it has ended.
    pub fn signal(&mut self, signal: &str) {
        if self.exited().is_none() {
            send_signal(signal, &self.id().to_string());
        }
    }

    /// `kill -9`, and waits until it is gone. The whole process group of the child goes with it.
    pub fn kill9(&mut self) {
        if self.exited().is_none() {
            send_signal("KILL", &format!("-{}", self.id()));
            let status = self.child.wait().unwrap();
            self.ended(status);
        }
    }

    /// Waits for the end, blocking; fails the test with the captured output after `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        self.wait_quietly(deadline).unwrap_or_else(|| {
            panic!(
                "{} still runs after {deadline:?}; its output:\n{}",
                self.name,
                self.tail()
            )
        })
    }

    /// Waits for the end without blocking the runtime.
    pub async fn wait_async(&mut self, deadline: Duration) -> ExitStatus {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(
                tokio::time::Instant::now() < end,
                "{} still runs after {deadline:?}; its output:\n{}",
                self.name,
                self.tail()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Everything it has written so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last 60 lines of its output, for failure messages.
    pub fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Blocks, because `Drop` needs it and Drop cannot await.
    #[allow(clippy::disallowed_methods)]
    fn wait_quietly(&mut self, deadline: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.exited() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The child is reaped: from now on its id may belong to somebody else, so the guardian goes too.
    fn ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        if let Some(mut pipe) = self.pipe.take() {
            let _ = writeln!(pipe, "done");
        }
        let _ = self.guardian.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() && self.last_signal != "KILL" {
            self.signal(self.last_signal);
            self.wait_quietly(Duration::from_secs(5));
        }
        self.kill9();
    }
}

/// The shell's own `kill`, since a minimal system has no other and signals from Rust need unsafe code.
fn send_signal(signal: &str, target: &str) {
    let _ = Command::new("sh")
        .args(["-c", r#"kill -s "$1" -- "$2""#, "kill", signal, target])
        .stderr(Stdio::null())
        .status();
}

/// A port that nothing listens on, given out once per test process.
///
/// Not from the range that the kernel gives to outgoing connections: a client that keeps trying to
/// reach a stopped server on such a port now and then connects to itself, and the server cannot
/// come back on its port. Another process may still take it first, so starters try again on a clash.
pub fn free_port() -> u16 {
    static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);
    let ceiling = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse::<u16>().ok())
        .filter(|low| *low > 12_000)
        .unwrap_or(32_768);
    loop {
        let random = uuid::Uuid::new_v4().as_u128() as u16;
        let port = 10_000 + random % (ceiling - 10_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && GIVEN.lock().unwrap().insert(port) {
            return port;
        }
    }
}

/// Whether captured output says that the port was taken in the meantime.
pub fn port_clash(output: &str) -> bool {
    output.to_lowercase().contains("address already in use")
}
