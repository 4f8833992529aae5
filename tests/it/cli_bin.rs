//! The built binary in a directory of its own, with a configuration and nothing else around it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::process::{Process, Spawn};

/// What a command came to.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The exit code must be this one.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// A directory with `outboxd.toml` in it, where commands run.
#[derive(Debug)]
pub struct Workplace {
    directory: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Workplace {
    /// With this configuration.
    pub fn new(config: &str) -> Self {
        let place = Self::empty();
        std::fs::write(place.path("outboxd.toml"), config).unwrap();
        place
    }

    /// Without a configuration.
    pub fn empty() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            env: Vec::new(),
        }
    }

    /// From an SQLite file to `events.jsonl`, both in the directory; `more` is added.
    pub fn sqlite_to_file(more: &str) -> Self {
        Self::new(&format!(
            "[databases.orders]\nurl = \"sqlite://orders.db\"\n[sinks.log]\ntype = \"file\"\npath = \
             \"events.jsonl\"\n[routes.all]\nkinds = [\"*\"]\nsinks = [\"log\"]\n{more}"
        ))
    }

    /// Commands see this variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Lines of a file in the directory; none when it is missing.
    pub fn lines(&self, name: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.directory.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("OUTBOXD") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command.env("USER", "tester");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end, with this variable on top of the others.
    pub fn outboxd_with(&self, variable: (&str, &str), args: &[&str]) -> Ended {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_outboxd")));
        command.env(variable.0, variable.1);
        finish(command, args, "")
    }

    /// Runs a command to its end.
    pub fn outboxd(&self, args: &[&str]) -> Ended {
        self.outboxd_reading(args, "")
    }

    /// Runs a command that reads `input`.
    pub fn outboxd_reading(&self, args: &[&str], input: &str) -> Ended {
        finish(
            self.command(Path::new(env!("CARGO_BIN_EXE_outboxd"))),
            args,
            input,
        )
    }

    /// Runs a command whose standard output nobody reads any more.
    pub fn outboxd_unread(&self, args: &[&str]) -> Ended {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_outboxd")));
        ended(
            command
                .args(args)
                .stdout(writer)
                .stderr(Stdio::piped())
                .output()
                .unwrap(),
        )
    }

    /// Runs a line of shell in which `$OUTBOXD` is the binary.
    pub fn shell(&self, line: &str) -> Ended {
        let output = self
            .command(Path::new("sh"))
            .args(["-c", line])
            .env("OUTBOXD", env!("CARGO_BIN_EXE_outboxd"))
            .output()
            .unwrap();
        ended(output)
    }

    /// Starts the service; its whole output is captured.
    pub fn start(&self, args: &[&str]) -> Process {
        self.start_program(env!("CARGO_BIN_EXE_outboxd"), args)
    }

    /// The same with this variable on top of the others.
    pub fn start_with(&self, variable: (&str, &str), args: &[&str]) -> Process {
        let spawn = self.spawn(env!("CARGO_BIN_EXE_outboxd"), args);
        spawn.env(variable.0, variable.1).start()
    }

    /// The same with another build of the binary.
    pub fn start_program(&self, program: &str, args: &[&str]) -> Process {
        self.spawn(program, args).start()
    }

    fn spawn(&self, program: &str, args: &[&str]) -> Spawn {
        let mut spawn = Spawn::new(program, self.path("service.log"))
            .args(args.iter().copied())
            .current_dir(self.directory.path());
        for (name, value) in &self.env {
            spawn = spawn.env(name, value);
        }
        spawn
    }
}

fn ended(output: std::process::Output) -> Ended {
    Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn finish(mut command: Command, args: &[&str], input: &str) -> Ended {
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read closes the pipe, which is its right.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    ended(child.wait_with_output().unwrap())
}
