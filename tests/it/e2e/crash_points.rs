//! The program dies at each of its fail points, in the middle of work, and whoever comes next delivers everything.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use outboxd::testing::fail_points::Point;
use tokio::time::Instant;

use super::bench::{Bench, LONG, Sent, Written, assert_exactly, insert_on};
use crate::support::eventually;
use crate::support::process::Process;

/// As many at a time as two processors take.
const AT_ONCE: usize = 5;
/// How long a program may work before its point is given another chance in its end.
const WORK: Duration = Duration::from_secs(2);
const ABORTED: i32 = 6;

/// What comes before the program that is to die, and at which time it does: in the middle of its work if it comes by
/// there often, otherwise the first time, otherwise where only the successor of a killed one comes by.
const CHANCES: [(Before, u32); 3] = [
    (Before::Nothing, 4),
    (Before::Nothing, 1),
    (Before::Killed, 1),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Killed,
}

/// Writes events of a few keys, some each time, until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<Written>>,
}

impl Load {
    async fn start(bench: &Bench) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let mut writer = bench.database.writer().await;
        let task = tokio::spawn(async move {
            let mut written = Vec::new();
            while !told.load(Ordering::Relaxed) {
                written.extend(insert_on(&mut writer, &["a", "b", "c", "d", "e", "f"], 2).await);
                // The pace of the writer.
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            written
        });
        Self { stop, task }
    }

    async fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

/// How often a program has said that it owns the database: what is heard from the broker may be an earlier one's.
fn owners(bench: &Bench) -> usize {
    let said = std::fs::read_to_string(bench.place.path("service.log")).unwrap_or_default();
    said.matches("is relayed by this instance").count()
}

/// Starts the program, and waits until it is in the middle of its work.
async fn start(bench: &Bench, sent: &Sent) -> Process {
    let before = owners(bench);
    let service = bench.process();
    eventually(LONG, "the program owns the database", || async {
        let owns = owners(bench) > before;
        owns.then_some(()).ok_or_else(|| service.tail())
    })
    .await;
    sent.wait_for(sent.count() + 10).await;
    service
}

/// Lets the program work with its point armed, and ends it in order if that is not hit.
async fn run_armed(bench: &Bench, point: Point, time: u32) -> (ExitStatus, Process) {
    let armed = format!("{}=abort@{time}", point.name());
    let (before, began) = (owners(bench), Instant::now());
    let mut service = bench.process_with(("OUTBOXD_FAIL_POINTS", &armed));
    let mut works_since = None;
    while service.exited().is_none()
        && works_since.is_none_or(|since: Instant| since.elapsed() < WORK)
    {
        assert!(began.elapsed() < LONG, "{}", service.tail());
        if works_since.is_none() && owners(bench) > before {
            works_since = Some(Instant::now());
        }
        // Time is the subject: it works for so long.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    service.signal("TERM");
    (service.wait_async(LONG).await, service)
}

/// Which chance it died at.
async fn dies_at(point: Point) -> usize {
    let bench = Bench::new(&[
        ("lease.ttl", "3s"),
        ("sinks.events.publish_timeout", "900ms"),
        ("shutdown.grace", "2s"),
    ])
    .await;
    let sent = bench.sent().await;
    let load = Load::start(&bench).await;
    let mut died_at = None;
    for (chance, (before, time)) in CHANCES.into_iter().enumerate() {
        if before == Before::Killed {
            start(&bench, &sent).await.kill9();
        }
        let (status, service) = run_armed(&bench, point, time).await;
        let output = service.output();
        if status.signal() == Some(ABORTED) {
            assert!(output.contains(point.name()), "{output}");
            died_at = Some(chance);
            break;
        }
        assert!(status.success(), "{point:?}: {status:?}\n{output}");
    }
    let died_at = died_at.unwrap_or_else(|| panic!("nothing came by {point:?}"));
    let _next = start(&bench, &sent).await;
    let written = load.stop().await;
    let seen = bench.wait_for(written.len()).await;
    bench.emptied().await;
    assert_exactly(&written, &seen);
    assert_eq!(sent.distinct(), written.len(), "repeats have the same ids");
    bench.verified().await;
    println!(
        "{point:?}: died at chance {died_at}; {} events, {} of them again",
        written.len(),
        sent.duplicates()
    );
    died_at
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_it_was_about_to_do_when_it_died_nothing_is_lost() {
    let began = Instant::now();
    let all = futures_util::stream::iter(Point::ALL.iter().copied());
    let chances: Vec<usize> = all.map(dies_at).buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(chances.len(), Point::ALL.len());
    println!("{} points in {:?}", chances.len(), began.elapsed());
}
