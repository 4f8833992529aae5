//! Processor time of the processes that take part in a measurement, and of everybody else on the machine.

use std::fs;
use std::time::{Duration, Instant};

use crate::measurement::{Figures, NATS, OTHERS, POSTGRES, RATE, RELAY};

/// Clock ticks a second in /proc, on every Linux there is.
const TICKS: f64 = 100.0;

/// Whose processor time is told apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watched {
    /// The relay; this process where there is none.
    pub relay: Option<u32>,
    /// The postmaster.
    pub postgres: Option<u32>,
    /// The broker.
    pub nats: Option<u32>,
}

/// Processor seconds since some moment.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    relay: f64,
    /// Writers and what looks on, where the relay is another process.
    program: f64,
    postgres: f64,
    nats: f64,
    machine: f64,
}

/// A measurement under way.
#[derive(Debug)]
pub struct Meter {
    watched: Watched,
    before: Used,
    start: Instant,
}

/// What a span of time cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Wall time.
    pub wall: Duration,
    /// Processor seconds of the relay, or of this process where it plays it.
    pub relay: f64,
    /// Of PostgreSQL.
    pub postgres: f64,
    /// Of the broker.
    pub nats: f64,
    /// Of everybody else, as a share of the machine.
    pub others: f64,
}

impl Cost {
    /// As figures: the rate, and processor time an event.
    pub fn figures(&self, events: u32) -> Figures {
        let microseconds = |seconds: f64| seconds * 1e6 / f64::from(events);
        Figures::default()
            .with(RATE, f64::from(events) / self.wall.as_secs_f64())
            .with(RELAY, microseconds(self.relay))
            .with(POSTGRES, microseconds(self.postgres))
            .with(NATS, microseconds(self.nats))
            .with(OTHERS, self.others * 100.0)
    }

    /// These seconds as a share of one core over the whole time, in percent.
    pub fn share(&self, seconds: f64) -> f64 {
        seconds / self.wall.as_secs_f64() * 100.0
    }
}

impl Meter {
    /// Starts counting.
    pub fn start(watched: Watched) -> Self {
        Self {
            watched,
            before: used(watched),
            start: Instant::now(),
        }
    }

    /// What was used since.
    pub fn stop(self) -> Cost {
        let wall = self.start.elapsed();
        let after = used(self.watched);
        let relay = after.relay - self.before.relay;
        let postgres = after.postgres - self.before.postgres;
        let nats = after.nats - self.before.nats;
        let program = after.program - self.before.program;
        let all = after.machine - self.before.machine;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let others =
            (all - relay - program - postgres - nats) / (wall.as_secs_f64() * cores as f64);
        Cost {
            wall,
            relay,
            postgres,
            nats,
            others: others.max(0.0),
        }
    }
}

fn used(watched: Watched) -> Used {
    Used {
        relay: watched
            .relay
            .map_or_else(|| process("self"), |id| process(&id.to_string()))
            .unwrap_or(0.0),
        program: watched.relay.and_then(|_| process("self")).unwrap_or(0.0),
        postgres: watched.postgres.map_or(0.0, family),
        nats: watched
            .nats
            .and_then(|id| process(&id.to_string()))
            .unwrap_or(0.0),
        machine: machine().unwrap_or(0.0),
    }
}

/// A postmaster with its children, those included that have ended.
fn family(postmaster: u32) -> f64 {
    let mut sum = 0.0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(fields) = stat(&name) else { continue };
        if name == postmaster.to_string() {
            sum += ticks(&fields, 11..15);
        } else if fields.get(1) == Some(&postmaster.to_string()) {
            sum += ticks(&fields, 11..13);
        }
    }
    sum
}

fn process(id: &str) -> Option<f64> {
    Some(ticks(&stat(id)?, 11..13))
}

/// The fields of /proc/ID/stat behind the name: state, parent, … utime (11), stime, cutime, cstime.
fn stat(id: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn ticks(fields: &[String], range: std::ops::Range<usize>) -> f64 {
    let ticks = fields.get(range).into_iter().flatten();
    ticks
        .filter_map(|tick| tick.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS
}

/// Everything but idling and waiting for disks.
fn machine() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<String> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .map(str::to_owned)
        .collect();
    Some(ticks(&fields, 0..3) + ticks(&fields, 5..7))
}
