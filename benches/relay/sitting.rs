//! One run of the program: its servers, what is measured on them, and whether everything arrived as it should.

use std::cell::RefCell;

use crate::arguments::Arguments;
use crate::measurement::{Group, Line, Results};
use crate::stage::Stage;

/// What every measurement gets.
pub struct Sitting {
    pub arguments: Arguments,
    pub stage: Stage,
    pub results: Results,
    audits: RefCell<Audits>,
}

#[derive(Debug, Default)]
struct Audits {
    line: String,
    events: u64,
    findings: Vec<String>,
}

impl Sitting {
    pub async fn start(arguments: Arguments) -> Self {
        Self {
            stage: Stage::start(!arguments.no_fsync).await,
            arguments,
            results: Results::default(),
            audits: RefCell::default(),
        }
    }

    /// What an audit found; nothing is what should be found.
    pub fn audited(&self, events: u64, findings: Vec<String>) {
        let mut audits = self.audits.borrow_mut();
        audits.events += events;
        for finding in findings {
            println!("    AUDIT: {finding}");
            let line = format!("{}: {finding}", audits.line);
            audits.findings.push(line);
        }
    }

    /// Measures every wanted line of each round. False if an audit found something.
    pub async fn measure(&self, groups: &[Group]) -> bool {
        let wanted = wanted(&self.arguments, groups);
        for round in 1..=self.arguments.rounds {
            println!("\nround {round}");
            for line in groups.iter().flat_map(|group| &group.lines) {
                if wanted.contains(&line.name.as_str()) && !(line.once && round > 1) {
                    self.measure_line(line, round).await;
                }
            }
        }
        let audits = self.audits.borrow();
        println!(
            "\naudit: {} events looked at, {} findings",
            audits.events,
            audits.findings.len()
        );
        for finding in &audits.findings {
            println!("  {finding}");
        }
        audits.findings.is_empty()
    }

    async fn measure_line(&self, line: &Line, round: usize) {
        self.audits.borrow_mut().line.clone_from(&line.name);
        let figures = (line.run)(self).await;
        let values = figures.values.iter();
        let words: Vec<String> = values
            .map(|(what, value)| format!("{what} {value:.2}"))
            .collect();
        let remark = figures.remark.as_deref().unwrap_or_default();
        println!("  {:44} {} {remark}", line.name, words.join("; "));
        if self.arguments.statements {
            for statement in self.stage.statements().await {
                println!("      {statement}");
            }
        }
        self.results.add(&line.name, round, figures);
        self.stage.clear().await;
    }
}

/// The lines that were asked for, and what they are compared with, in turn.
fn wanted<'a>(arguments: &Arguments, groups: &'a [Group]) -> Vec<&'a str> {
    let mut wanted = Vec::new();
    let all = || groups.iter().flat_map(|group| &group.lines);
    for group in groups {
        for line in &group.lines {
            if arguments.wants(group.name, &line.name) {
                wanted.push(line.name.as_str());
            }
        }
    }
    let mut at = 0;
    while at < wanted.len() {
        if let Some(line) = all().find(|line| line.name == wanted[at]) {
            for other in &line.against {
                assert!(
                    all().any(|line| line.name == *other),
                    "{} is compared with {other}, which does not exist",
                    line.name
                );
                if !wanted.contains(&other.as_str()) {
                    wanted.push(other);
                }
            }
        }
        at += 1;
    }
    wanted
}
