//! Operators' hands in a run: pauses that come and go, heads that are skipped or tried at once.

use std::sync::Arc;
use std::time::Duration;

use outboxd::source::Target;
use outboxd::source::admin::{Admin, Operator};
use outboxd::source::waiting::{KeyName, Pick};

use super::SINKS;
use super::dice::Dice;
use super::world::{World, pass};

fn by() -> Operator {
    Operator {
        name: "chaos".into(),
        reason: None,
    }
}

fn key(dice: &mut Dice) -> String {
    match dice.chance(80) {
        true => format!("s{}", dice.below(12)),
        false => format!("w{}", dice.below(4)),
    }
}

fn sink(dice: &mut Dice) -> String {
    (*dice.pick(&SINKS).unwrap()).to_owned()
}

/// Pauses something for a while, again and again; nothing stays paused.
pub async fn pause(world: Arc<World>, mut dice: Dice) {
    while !world.over() {
        pass(dice.ms(200)).await;
        let target = match dice.below(10) {
            0 => Target::Source,
            1 | 2 => Target::Sink {
                name: sink(&mut dice),
            },
            3..=5 => Target::Route {
                name: (*dice.pick(&["solo", "pair", "all"]).unwrap()).to_owned(),
            },
            _ => Target::Key {
                name: key(&mut dice),
                sink: dice.chance(50).then(|| sink(&mut dice)),
            },
        };
        world.source.pause(&target, &by()).await.unwrap();
        pass(dice.ms(250)).await;
        world.source.resume(&target, &by()).await.unwrap();
    }
}

/// Skips heads of keys, and has others tried at once.
pub async fn skip(world: Arc<World>, mut dice: Dice) {
    while !world.over() {
        pass(Duration::from_millis(20) + dice.ms(200)).await;
        let sink = sink(&mut dice);
        let name = KeyName::Named(key(&mut dice));
        let events = world.source.key_events(&sink, &name, 2).await.unwrap();
        let Some(event) = dice.pick(&events).cloned() else {
            continue;
        };
        // Where no route leads there is no owner to do it.
        if !super::sinks_of(&event.kind).contains(&&*sink) {
            continue;
        }
        let picks = [Pick {
            seq: event.seq,
            sink: sink.clone(),
        }];
        if dice.chance(60) {
            world.source.hurry(&picks, &by()).await.unwrap();
        } else {
            world.ledger.skipped(&sink, event.id);
            world.source.skip(&picks, &by()).await.unwrap();
        }
    }
}
