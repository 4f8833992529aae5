//! `outboxd keys show`.

use serde_json::{Value, json};

use super::place::due;
use super::{KeyName, Place, Scene, WaitsFor, pasteable, patiently, refused};
use crate::cli::failure::Failure;
use crate::cli::output::{Output, safe, say};
use crate::source::admin::Status;
use crate::source::waiting::KeyEvent;
use crate::status::{Gate, Snapshot};

pub(super) async fn show(scene: &Scene, out: &Output) -> Result<(), Failure> {
    let places = scene.places().await?;
    let status = patiently(scene.database.admin.status())
        .await
        .map_err(|error| refused(&scene.database, &error))?;
    if status.instances.is_empty() {
        say(format_args!(
            "database {}: no instance has given a sign of life; nothing is delivered",
            scene.database.name
        ));
    }
    let (key, seq) = match &scene.key {
        KeyName::Named(key) => (Some(key), None),
        KeyName::Alone(seq) => (None, Some(seq)),
    };
    let sinks: Vec<Value> = places
        .iter()
        .map(|place| {
            let mut shown = place.json();
            shown["sink_reason"] = json!(closed(&status, &place.sink));
            shown
        })
        .collect();
    let document = json!({
        "database": scene.database.name,
        "key": key,
        "seq": seq,
        "sinks": sinks,
    });
    out.write(&document, |_| {
        let mut text = format!("key   {}\n", pasteable(&scene.key));
        for place in &places {
            text.push_str(&in_words(place, &status));
        }
        text
    })
}

fn in_words(place: &Place, status: &Status) -> String {
    let mut text = format!("\nsink  {}\n", place.sink);
    for pause in &place.pauses {
        text.push_str(&format!("  {}\n", safe(&pause.to_string())));
    }
    let Some(head) = &place.head else {
        text.push_str("  nothing is pending\n");
        return text;
    };
    text.push_str(&format!(
        "  {}\n  head        seq {}, id {}, kind {}\n  written     {}\n",
        waits(head),
        head.seq,
        head.id,
        safe(&head.kind),
        head.occurred_at,
    ));
    if head.waits_for() == WaitsFor::Turn
        && let Some(reason) = closed(status, &place.sink)
    {
        text.push_str(&format!("  the sink takes no events: {}\n", safe(&reason)));
    }
    if let Some(error) = &head.last_error {
        let at = head.failed_at.map(|at| at.to_string()).unwrap_or_default();
        text.push_str(&format!(
            "  failed      {} times, last at {at}: {}\n",
            head.attempts,
            safe(error)
        ));
    }
    let more = if place.behind_bounded { " or more" } else { "" };
    text.push_str(&format!("  behind it   {}{more}\n", place.behind));
    text
}

fn waits(head: &KeyEvent) -> String {
    let due = due(head).unwrap_or_default();
    match head.waits_for() {
        WaitsFor::Turn => "may go: it is on its way, or next".to_owned(),
        WaitsFor::Skip => format!(
            "is to be set aside as soon as it is not out: {}",
            safe(head.skip.as_deref().unwrap_or_default())
        ),
        WaitsFor::Delay => format!("delayed by its writer until {due}"),
        WaitsFor::BackOff => format!("backs off until {due}"),
        WaitsFor::Operator => {
            "blocked: its budget is spent (on_exhausted = \"block\"); resume or skip it".to_owned()
        }
    }
}

/// Why the sink takes nothing, as the instances tell.
fn closed(status: &Status, sink: &str) -> Option<String> {
    let reports = status
        .instances
        .iter()
        .filter_map(|instance| serde_json::from_value::<Snapshot>(instance.report.clone()).ok());
    let shown = reports.flat_map(|report| report.sinks);
    let best = shown
        .filter(|found| found.name == sink)
        .min_by_key(|found| found.gate as u8)?;
    if best.gate == Gate::Open {
        return None;
    }
    Some(best.reason.unwrap_or_else(|| "not connected".to_owned()))
}
