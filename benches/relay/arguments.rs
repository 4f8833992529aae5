//! The command line of the program.

use std::time::Duration;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// How often each line is measured.
    pub rounds: usize,
    /// Events of a usual backlog; other sizes follow from it.
    pub events: u32,
    /// The backlogs that take minutes to fill.
    pub large: bool,
    /// Print what took the database's time.
    pub statements: bool,
    /// Write tables and plot into docs/.
    pub write: bool,
    /// PostgreSQL does not wait for its disk: to see that everything works, not for figures.
    pub no_fsync: bool,
    /// How long a rate of writing is held.
    pub span: Duration,
    /// Silence before a first event.
    pub silence: Duration,
    /// Words; a line is measured whose name or group contains one of them. None: every line.
    pub only: Vec<String>,
}

impl Arguments {
    /// From the command line; a mistake ends the program.
    pub fn read() -> Self {
        match Self::parse(std::env::args().skip(1)) {
            Ok(arguments) => arguments,
            Err(message) => {
                eprintln!("{message}\n\n{USAGE}");
                std::process::exit(2);
            }
        }
    }

    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            rounds: 3,
            events: 200_000,
            large: false,
            statements: false,
            write: false,
            no_fsync: false,
            span: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            only: Vec::new(),
        };
        while let Some(word) = given.next() {
            let mut number = || {
                let number: Option<f64> = given.next().and_then(|number| number.parse().ok());
                number
                    .filter(|number| *number > 0.0 && *number < 1e9)
                    .ok_or(format!("{word} needs a number above 0 behind it"))
            };
            match word.as_str() {
                // From cargo.
                "--bench" => {}
                "--large" => arguments.large = true,
                "--statements" => arguments.statements = true,
                "--write" => arguments.write = true,
                "--no-fsync" => arguments.no_fsync = true,
                "--rounds" => arguments.rounds = (number()? as usize).max(1),
                "--events" => arguments.events = (number()? as u32).max(1),
                "--span" => arguments.span = Duration::from_secs_f64(number()?),
                "--silence" => arguments.silence = Duration::from_secs_f64(number()?),
                "--help" | "-h" => return Err("what this program takes:".to_owned()),
                option if option.starts_with('-') => {
                    return Err(format!("there is no option {option}"));
                }
                name => arguments.only.push(name.to_owned()),
            }
        }
        if arguments.write && (arguments.no_fsync || cfg!(debug_assertions)) {
            let message = "--write needs a release build and fsync: other figures mean nothing";
            return Err(message.to_owned());
        }
        Ok(arguments)
    }

    /// Whether this line of this group is asked for.
    pub fn wants(&self, group: &str, line: &str) -> bool {
        self.only.is_empty()
            || self
                .only
                .iter()
                .any(|word| line.contains(word.as_str()) || group == word)
    }

    /// `events`, or as many as `--events` where that is smaller.
    pub fn at_most(&self, events: u32) -> u32 {
        events.min(self.events)
    }
}

const USAGE: &str = "\
cargo bench --bench relay -- [OPTIONS] [WORD…]

  WORD           measure lines whose name contains it, or groups of this name; and what they are compared with
  --rounds N     measure each line so often (3)
  --events N     events of a backlog (200000); smaller ones also make every other size smaller
  --span N       seconds for which a rate of writing is held (10)
  --silence N    seconds of silence before a first event (10)
  --large        with backlogs of millions, which take minutes to fill
  --statements   what took the database's time, after each line
  --write        put tables and plot into docs/
  --no-fsync     quicker, to see that everything works; the figures mean nothing";
