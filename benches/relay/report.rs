//! The figures of all rounds, and their medians.

use crate::cpu::Cost;
use crate::latency::{Idle, Latency};
use crate::stage::CONDITIONS;

/// Everything measured.
pub struct Report {
    events: u32,
    rates: Vec<(String, Option<String>, Vec<Cost>)>,
    latencies: Vec<(String, Vec<Latency>)>,
    idles: Vec<(String, Vec<Idle>)>,
}

/// Prints what the figures were measured on.
pub fn conditions(events: u32, rounds: usize) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    println!("{events} events of 1 KiB, {rounds} rounds; {cores} cores, {model}");
    println!("{CONDITIONS}");
    if cfg!(debug_assertions) {
        println!("NOT A RELEASE BUILD: these figures mean nothing");
    }
}

impl Report {
    pub fn new(events: u32) -> Self {
        Self {
            events,
            rates: Vec::new(),
            latencies: Vec::new(),
            idles: Vec::new(),
        }
    }

    /// Takes in a backlog. `ceiling` names the figure of the same round that it is compared with.
    pub fn rate(&mut self, name: &str, ceiling: Option<&str>, cost: Cost) {
        println!("  {name:28} {}", self.words(&cost));
        match self.rates.iter_mut().find(|(known, ..)| known == name) {
            Some((_, _, costs)) => costs.push(cost),
            None => {
                let ceiling = ceiling.map(str::to_owned);
                self.rates.push((name.to_owned(), ceiling, vec![cost]));
            }
        }
    }

    pub fn latency(&mut self, name: &str, latency: Latency) {
        println!(
            "  {name:28} p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms of {} events; with the commit p50 {:.2} ms, p99 {:.2} ms; {}",
            latency.p50,
            latency.p99,
            latency.max,
            latency.events,
            latency.sent_p50,
            latency.sent_p99,
            share(&latency.cost),
        );
        match self.latencies.iter_mut().find(|(known, _)| known == name) {
            Some((_, list)) => list.push(latency),
            None => self.latencies.push((name.to_owned(), vec![latency])),
        }
    }

    pub fn idle(&mut self, name: &str, idle: Idle) {
        println!(
            "  {name:28} {}; {} calls to the database in {:.0} s",
            share(&idle.cost),
            idle.calls,
            idle.cost.wall.as_secs_f64()
        );
        match self.idles.iter_mut().find(|(known, _)| known == name) {
            Some((_, list)) => list.push(idle),
            None => self.idles.push((name.to_owned(), vec![idle])),
        }
    }

    fn per_second(&self, cost: &Cost) -> f64 {
        f64::from(self.events) / cost.wall.as_secs_f64()
    }

    fn words(&self, cost: &Cost) -> String {
        let us = |seconds: f64| seconds * 1e6 / f64::from(self.events);
        format!(
            "{:7.0}/s; µs of processor an event: relay {:5.1}, postgres {:5.1}, nats {:5.1}; others {:.0} % of the machine",
            self.per_second(cost),
            us(cost.relay),
            us(cost.postgres),
            us(cost.nats),
            cost.others * 100.0
        )
    }

    /// The medians, as a table.
    pub fn print(&self) {
        let us = |seconds: f64| seconds * 1e6 / f64::from(self.events);
        if !self.rates.is_empty() {
            println!(
                "\n| backlog | events/s | of the database alone (two sinks: of these alone) | of the broker alone | µs an event: relay | postgres | nats | others' load |\n|---|--:|--:|--:|--:|--:|--:|--:|"
            );
        }
        for (name, ceiling, costs) in &self.rates {
            let of = |other: &str| self.ratio(name, other);
            println!(
                "| {name} | {:.0} | {} | {} | {:.1} | {:.1} | {:.1} | {:.0} % |",
                median(costs.iter().map(|cost| self.per_second(cost))),
                ceiling.as_deref().and_then(of).unwrap_or_default(),
                (name.contains("nats"))
                    .then(|| of("broker alone"))
                    .flatten()
                    .unwrap_or_default(),
                median(costs.iter().map(|cost| us(cost.relay))),
                median(costs.iter().map(|cost| us(cost.postgres))),
                median(costs.iter().map(|cost| us(cost.nats))),
                median(costs.iter().map(|cost| cost.others)) * 100.0,
            );
        }
        if !self.latencies.is_empty() {
            println!(
                "\n| commit to stream | p50 | p99 | max | commit included: p50 | p99 | relay, % of a core |\n|---|--:|--:|--:|--:|--:|--:|"
            );
        }
        for (name, list) in &self.latencies {
            let of = |pick: fn(&Latency) -> f64| median(list.iter().map(pick));
            println!(
                "| {name} | {:.2} ms | {:.2} ms | {:.1} ms | {:.2} ms | {:.2} ms | {:.1} |",
                of(|l| l.p50),
                of(|l| l.p99),
                of(|l| l.max),
                of(|l| l.sent_p50),
                of(|l| l.sent_p99),
                of(|l| l.cost.relay / l.cost.wall.as_secs_f64() * 100.0),
            );
        }
        for (name, list) in &self.idles {
            println!(
                "\n{name}: relay {:.2} % of a core, postgres {:.2} %, {:.0} calls to the database in {:.0} s",
                median(
                    list.iter()
                        .map(|i| i.cost.relay / i.cost.wall.as_secs_f64() * 100.0)
                ),
                median(
                    list.iter()
                        .map(|i| i.cost.postgres / i.cost.wall.as_secs_f64() * 100.0)
                ),
                median(list.iter().map(|i| i.calls as f64)),
                list[0].cost.wall.as_secs_f64(),
            );
        }
    }

    /// The median over the rounds of the ratio to another figure of the same round.
    fn ratio(&self, name: &str, other: &str) -> Option<String> {
        let find = |wanted: &str| self.rates.iter().find(|(known, ..)| known == wanted);
        let (own, other) = (&find(name)?.2, &find(other)?.2);
        let ratios = own
            .iter()
            .zip(other)
            .map(|(own, other)| other.wall.as_secs_f64() / own.wall.as_secs_f64());
        Some(format!("{:.2}", median(ratios)))
    }
}

fn share(cost: &Cost) -> String {
    let wall = cost.wall.as_secs_f64();
    format!(
        "% of a core: relay {:.1}, postgres {:.1}, nats {:.1}; others {:.0} % of the machine",
        cost.relay / wall * 100.0,
        cost.postgres / wall * 100.0,
        cost.nats / wall * 100.0,
        cost.others * 100.0
    )
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
        odd => sorted[odd / 2],
    }
}
