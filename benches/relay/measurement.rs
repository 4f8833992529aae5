//! What a measurement is: a line of a group that gives figures, and what becomes of them over the rounds.

use std::cell::RefCell;
use std::collections::BTreeMap;

use futures_util::future::LocalBoxFuture;

use crate::sitting::Sitting;

/// What a figure counts. Its text heads the column.
pub type What = &'static str;

pub const RATE: What = "events/s";
pub const RELAY: What = "µs an event: relay";
pub const POSTGRES: What = "PostgreSQL";
pub const NATS: What = "nats-server";
pub const OTHERS: What = "others' load, %";
pub const WAL: What = "WAL bytes an event";
pub const PEAK: What = "peak memory, MB";
pub const P50: What = "p50, ms";
pub const P99: What = "p99, ms";
pub const P999: What = "p99.9, ms";

/// The figures of one line in one round.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub values: Vec<(What, f64)>,
    /// What else belongs to them, in words.
    pub remark: Option<String>,
}

impl Figures {
    pub fn with(mut self, what: What, value: f64) -> Self {
        self.values.push((what, value));
        self
    }

    /// The same with another value in the place of one that it has.
    pub fn replacing(mut self, what: What, value: f64) -> Self {
        self.values.retain(|(own, _)| *own != what);
        self.with(what, value)
    }

    pub fn remark(mut self, words: impl Into<String>) -> Self {
        self.remark = Some(words.into());
        self
    }

    pub fn get(&self, what: What) -> Option<f64> {
        let found = self.values.iter().find(|(own, _)| *own == what);
        found.map(|(_, value)| *value)
    }
}

type Run = Box<dyn for<'a> Fn(&'a Sitting) -> LocalBoxFuture<'a, Figures>>;

/// One line: measured once a round.
pub struct Line {
    pub name: String,
    /// Lines it is compared with: measured whenever it is, and before it. The first is its base.
    pub against: Vec<String>,
    /// Takes minutes: the first round only.
    pub once: bool,
    pub run: Run,
}

impl Line {
    pub fn new(
        name: impl Into<String>,
        against: &[&str],
        run: impl for<'a> Fn(&'a Sitting) -> LocalBoxFuture<'a, Figures> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            against: against.iter().map(|name| (*name).to_owned()).collect(),
            once: false,
            run: Box::new(run),
        }
    }

    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }
}

/// Lines that share a table.
pub struct Group {
    /// For the command line and the marker in the page.
    pub name: &'static str,
    pub lines: Vec<Line>,
    pub columns: Vec<Column>,
    pub goals: Vec<Goal>,
}

/// A column of a group's table.
pub struct Column {
    pub title: &'static str,
    pub value: Value,
    pub decimals: usize,
}

impl Column {
    /// A figure as it is.
    pub fn of(what: What, decimals: usize) -> Self {
        Self {
            title: what,
            value: Value::Plain(what),
            decimals,
        }
    }

    /// A figure as a ratio to one of another line.
    pub fn ratio(title: &'static str, what: What, line: &'static str, to: What) -> Self {
        Self {
            title,
            value: Value::Ratio(what, line, to),
            decimals: 2,
        }
    }

    /// A figure as a ratio to the same of the line's base.
    pub fn of_base(title: &'static str, what: What) -> Self {
        Self {
            title,
            value: Value::OfBase(what),
            decimals: 2,
        }
    }
}

/// How a number comes from figures.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    Plain(What),
    /// Of the same round.
    Ratio(What, &'static str, What),
    OfBase(What),
}

/// What should come out.
pub struct Goal {
    pub line: &'static str,
    pub words: &'static str,
    pub value: Value,
    pub bound: Bound,
}

#[derive(Debug, Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
            Self::AtMost(bound) => write!(f, "at most {bound}"),
        }
    }
}

/// Everything measured so far: for each line its figures by round.
#[derive(Debug, Default)]
pub struct Results(RefCell<BTreeMap<String, BTreeMap<usize, Figures>>>);

impl Results {
    pub fn add(&self, line: &str, round: usize, figures: Figures) {
        let mut all = self.0.borrow_mut();
        all.entry(line.to_owned())
            .or_default()
            .insert(round, figures);
    }

    pub fn has(&self, line: &str) -> bool {
        self.0.borrow().contains_key(line)
    }

    /// The newest figure of a line.
    pub fn last(&self, line: &str, what: What) -> Option<f64> {
        let all = self.0.borrow();
        let (_, figures) = all.get(line)?.last_key_value()?;
        figures.get(what)
    }

    pub fn remark(&self, line: &str) -> Option<String> {
        let all = self.0.borrow();
        let (_, figures) = all.get(line)?.last_key_value()?;
        figures.remark.clone()
    }

    /// The median over the rounds. A ratio is the median of the rounds' ratios.
    pub fn median(&self, line: &str, base: Option<&str>, value: Value) -> Option<f64> {
        let all = self.0.borrow();
        let rounds = all.get(line)?;
        let values = rounds.iter().filter_map(|(round, figures)| match value {
            Value::Plain(what) => figures.get(what),
            Value::Ratio(what, other, to) => {
                Some(figures.get(what)? / all.get(other)?.get(round)?.get(to)?)
            }
            Value::OfBase(what) => {
                Some(figures.get(what)? / all.get(base?)?.get(round)?.get(what)?)
            }
        });
        median(values)
    }
}

/// `None` of nothing.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.is_empty() {
        None
    } else if sorted.len().is_multiple_of(2) {
        Some(f64::midpoint(sorted[half - 1], sorted[half]))
    } else {
        Some(sorted[half])
    }
}

/// The value that this share of the sorted values does not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}
