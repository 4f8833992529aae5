//! `outboxd keys pause`, `resume` and `skip`.

use std::time::{Duration, Instant};

use super::{
    By, Failure, KeyName, Output, Pick, Place, Scene, Skip, Target, WaitsFor, json, pasteable,
    patiently, place, refused, safe, say,
};

/// How long a skip is watched, to tell whether it is done.
const WATCH: Duration = Duration::from_secs(2);

impl Scene {
    fn named(&self) -> Result<&str, Failure> {
        match &self.key {
            KeyName::Named(key) => Ok(key),
            KeyName::Alone(_) => Err(Failure::usage(
                "an event without a key cannot be paused by itself; pause its route or its sink",
            )),
        }
    }
}

pub(super) async fn pause(scene: &Scene, by: &By, out: &Output) -> Result<(), Failure> {
    let what = Target::Key {
        name: scene.named()?.to_owned(),
        sink: scene.sink.clone(),
    };
    let changed = patiently(scene.database.admin.pause(&what, &by.operator()))
        .await
        .map_err(|error| refused(&scene.database, &error))?;
    if !changed {
        say(format_args!("it is paused already; nothing is changed"));
    }
    let document = json!({ "database": scene.database.name, "target": what, "paused": changed });
    out.write(&document, |_| match changed {
        true => format!("paused: {}", pasteable(&scene.key)),
        false => String::new(),
    })
}

pub(super) async fn resume(scene: &Scene, by: &By, out: &Output) -> Result<(), Failure> {
    let by = by.operator();
    let mut resumed = 0_u64;
    if let KeyName::Named(key) = &scene.key {
        let pauses = patiently(scene.database.admin.pauses())
            .await
            .map_err(|error| refused(&scene.database, &error))?;
        for pause in &pauses {
            let Target::Key { name, sink } = &pause.target else {
                continue;
            };
            if name != key {
                continue;
            }
            match (&scene.sink, sink) {
                (Some(_), None) => say(format_args!(
                    "the key is paused for all sinks, and stays so; resume it without --sink"
                )),
                (Some(only), Some(sink)) if only != sink => {}
                _ => {
                    let done = patiently(scene.database.admin.resume(&pause.target, &by)).await;
                    resumed += u64::from(done.map_err(|error| refused(&scene.database, &error))?);
                }
            }
        }
    }
    // After the pause, so that what is looked at may go.
    let places = scene.places().await?;
    let picks: Vec<Pick> = places
        .iter()
        .filter_map(|place| pick_to_retry(place, resumed > 0))
        .collect();
    let mut retried = 0;
    if !picks.is_empty() {
        retried = patiently(scene.database.admin.hurry(&picks, &by))
            .await
            .map_err(|error| refused(&scene.database, &error))?;
    }
    for place in &places {
        for pause in &place.pauses {
            say(format_args!("it still waits: {}", safe(&pause.to_string())));
        }
        if let Some(head) = &place.head
            && head.waits_for() == WaitsFor::Delay
        {
            say(format_args!(
                "sink {}: the head is delayed by its writer until {}, and stays so",
                place.sink, head.available_at
            ));
        }
    }
    if resumed == 0 && retried == 0 {
        say(format_args!(
            "it was not paused, and nothing of it was backing off"
        ));
    }
    let document = json!({
        "database": scene.database.name,
        "resumed": resumed,
        "retried": retried,
    });
    out.write(&document, |_| {
        format!("{resumed} pauses ended, {retried} heads are tried at once")
    })
}

fn pick_to_retry(place: &Place, resumed: bool) -> Option<Pick> {
    let head = place.head.as_ref()?;
    let retry = match head.waits_for() {
        WaitsFor::BackOff | WaitsFor::Operator => true,
        // It may back off in the memory of its owner, without a charge; the end of a pause makes it look anyway.
        WaitsFor::Turn => !resumed,
        WaitsFor::Delay | WaitsFor::Skip => false,
    };
    retry.then(|| Pick {
        seq: head.seq,
        sink: place.sink.clone(),
    })
}

pub(super) async fn skip(scene: &Scene, args: &Skip, out: &Output) -> Result<(), Failure> {
    let places = scene.places().await?;
    let heads: Vec<(&Place, &crate::source::waiting::KeyEvent)> = places
        .iter()
        .filter_map(|place| Some((place, place.head.as_ref()?)))
        .collect();
    if heads.is_empty() {
        return Err(Failure::failed(
            "nothing of it is pending: there is nothing to skip",
        ));
    }
    if let Some(expected) = args.head
        && let Some((place, head)) = heads.iter().find(|(_, head)| head.seq != expected)
    {
        return Err(Failure::failed(format!(
            "sink {}: the head is seq {} by now, not {expected}; nothing was changed",
            place.sink, head.seq
        )));
    }
    let picks: Vec<Pick> = heads
        .iter()
        .map(|(place, head)| Pick {
            seq: head.seq,
            sink: place.sink.clone(),
        })
        .collect();
    let mut marked = 0;
    let mut waiting = Vec::new();
    if !args.dry_run {
        marked = patiently(scene.database.admin.skip(&picks, &args.by.operator()))
            .await
            .map_err(|error| refused(&scene.database, &error))?;
        waiting = watch(scene, &picks).await?;
    }
    for pick in &waiting {
        say(format_args!(
            "sink {}: seq {} is set aside as soon as it is not out; `outboxd keys show` tells why it is not yet",
            pick.sink, pick.seq
        ));
    }
    let shown: Vec<_> = heads
        .iter()
        .map(|(place, head)| {
            let open = waiting
                .iter()
                .any(|pick| pick.seq == head.seq && pick.sink == place.sink);
            json!({
                "sink": place.sink,
                "head": place::event(head),
                "behind": place.behind,
                "done": !args.dry_run && !open,
            })
        })
        .collect();
    let document = json!({
        "database": scene.database.name,
        "dry_run": args.dry_run,
        "skipped": marked,
        "events": shown,
    });
    let word = if args.dry_run {
        "would skip"
    } else {
        "skipped"
    };
    out.write(&document, |_| {
        heads
            .iter()
            .map(|(place, head)| {
                format!(
                    "{word}: sink {}, seq {}, id {}, kind {}\n",
                    place.sink,
                    head.seq,
                    head.id,
                    safe(&head.kind)
                )
            })
            .collect()
    })
}

/// Looks for a moment whether the owner has done it; gives what is still there.
async fn watch(scene: &Scene, picks: &[Pick]) -> Result<Vec<Pick>, Failure> {
    let began = Instant::now();
    loop {
        let places = scene.places().await?;
        let open: Vec<Pick> = picks
            .iter()
            .filter(|pick| {
                places.iter().any(|place| {
                    place.sink == pick.sink
                        && place.head.as_ref().is_some_and(|head| head.seq == pick.seq)
                })
            })
            .cloned()
            .collect();
        if open.is_empty() || began.elapsed() > WATCH {
            return Ok(open);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
