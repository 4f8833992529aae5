//! What follows from the answer to one hand-over.

use std::time::Duration;

use crate::retry::{OnExhausted, Policy, back_off};
use crate::sink::{PublishError, PublishErrorKind, Receipt};
use crate::source::DiscardReason;

/// Uncharged failures in a row, with successes of others between them, after which the event is charged.
pub const STRIKES: u32 = 3;

/// First and longest pause after a failure that charges nothing.
const UNCHARGED_BASE: Duration = Duration::from_millis(250);
const UNCHARGED_MAX: Duration = Duration::from_secs(15);
/// A lost answer is asked for again soon, inside the destination's dedupe window.
const UNKNOWN_BASE: Duration = Duration::from_millis(100);
const UNKNOWN_MAX: Duration = Duration::from_secs(5);
/// Longest pause after a failure that charges nothing while the sink takes nothing of anybody: an outage, after which
/// work goes on soon, however long it lasted. The gate lets single events through meanwhile.
const OUTAGE_MAX: Duration = Duration::from_secs(1);
/// An event over which the sink's code panics so often in a row is set aside.
const PANICS: u32 = 3;

/// Longest pause after a lost answer, at the widest jitter.
pub const UNKNOWN_PAUSE: Duration = Duration::from_millis(6_250);

/// An exhausted event that blocks its key is due again after this long: an operator decides before.
pub const BLOCKED: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How the publisher answered.
#[derive(Debug)]
pub enum Reply {
    /// The sink answered, or failed to.
    Answered(Result<Receipt, PublishError>),
    /// It was never sent: the publisher was gone, or the lease had no time left.
    NotSent,
    /// It may have been sent: the publisher died meanwhile.
    Lost,
}

/// What to do with the event and its key.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Settle as published; the key goes on.
    Published(Receipt),
    /// Offer it again as soon as there is a permit.
    Offer {
        /// It may have been stored.
        repeat: bool,
        /// The publisher may be away.
        pause: bool,
    },
    /// The key waits, nothing is charged.
    Wait {
        /// How long.
        pause: Duration,
        /// Failures in a row that may become the event's own fault.
        strikes: u32,
        /// How often in a row the sink had no room.
        full: u32,
        /// How often in a row the sink's code panicked.
        panics: u32,
        /// It may have been stored.
        repeat: bool,
        /// What happened.
        error: String,
    },
    /// Settle as a charged failure; the key waits.
    Retry {
        /// Charged failures, this one included.
        attempts: u32,
        /// How long.
        pause: Duration,
        /// It may have been stored.
        repeat: bool,
        /// What happened.
        error: String,
    },
    /// Settle as discarded; the key goes on when that is committed.
    Discard {
        /// Why.
        reason: DiscardReason,
        /// The sink's word.
        code: Option<&'static str>,
        /// Charged failures, this one included.
        attempts: u32,
        /// What happened.
        error: String,
    },
}

impl Decision {
    /// The hand-over that led here may have been taken, and its answer is lost.
    pub fn leaves_unknown(&self) -> bool {
        match self {
            Self::Offer { repeat, .. } | Self::Wait { repeat, .. } | Self::Retry { repeat, .. } => {
                *repeat
            }
            Self::Published(_) | Self::Discard { .. } => false,
        }
    }
}

/// What is known beside the answer.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The route's rule.
    pub policy: &'a Policy,
    /// Charged failures so far.
    pub attempts: u32,
    /// Uncharged failures in a row so far.
    pub strikes: u32,
    /// How often in a row the sink had no room.
    pub full: u32,
    /// How often in a row the sink's code panicked so far.
    pub panics: u32,
    /// Others succeeded at this sink since the event was handed over.
    pub others_succeed: bool,
    /// 0.0 to 1.0.
    pub jitter: f64,
}

impl Context<'_> {
    /// The pause after so many failures in a row that charge nothing.
    fn pause(&self, base: Duration, max: Duration, failures: u32) -> Duration {
        let max = match self.others_succeed {
            true => max,
            false => max.min(OUTAGE_MAX),
        };
        back_off(base, max, failures, self.jitter)
    }
}

/// Decides. An outage is not an event's fault: only an answer about this event charges an attempt, or a failure
/// that keeps hitting this event while others succeed.
pub fn decide(reply: Reply, context: &Context<'_>) -> Decision {
    let error = match reply {
        Reply::Answered(Ok(receipt)) => return Decision::Published(receipt),
        Reply::NotSent => return offer(false, true),
        Reply::Lost => return offer(true, true),
        Reply::Answered(Err(error)) => error,
    };
    match error.kind {
        PublishErrorKind::Unavailable {
            connection_lost: true,
        } => offer(true, true),
        PublishErrorKind::Unavailable {
            connection_lost: false,
        } => uncharged(error.message, false, context, UNCHARGED_BASE, UNCHARGED_MAX),
        PublishErrorKind::Full => {
            let full = context.full.saturating_add(1);
            Decision::Wait {
                pause: context.pause(UNCHARGED_BASE, UNCHARGED_MAX, full),
                strikes: context.strikes,
                full,
                panics: 0,
                repeat: false,
                error: error.message,
            }
        }
        PublishErrorKind::Unknown => {
            uncharged(error.message, true, context, UNKNOWN_BASE, UNKNOWN_MAX)
        }
        PublishErrorKind::Panicked => panicked(error.message, context),
        PublishErrorKind::Behind => offer(false, false),
        PublishErrorKind::Retryable => charged(error.message, false, context),
        PublishErrorKind::Rejected { code } => Decision::Discard {
            reason: DiscardReason::Permanent,
            code: Some(code),
            attempts: context.attempts.saturating_add(1),
            error: error.message,
        },
    }
}

fn offer(repeat: bool, pause: bool) -> Decision {
    Decision::Offer { repeat, pause }
}

fn uncharged(
    error: String,
    repeat: bool,
    context: &Context<'_>,
    base: Duration,
    max: Duration,
) -> Decision {
    let strikes = context.strikes.saturating_add(1);
    if strikes >= STRIKES && context.others_succeed {
        return charged(error, repeat, context);
    }
    Decision::Wait {
        pause: context.pause(base, max, strikes),
        strikes,
        full: 0,
        panics: 0,
        repeat,
        error,
    }
}

/// It may have been stored before the panic. Whatever it is about, the third time it is about this event.
fn panicked(error: String, context: &Context<'_>) -> Decision {
    let panics = context.panics.saturating_add(1);
    if panics >= PANICS {
        if context.policy.on_exhausted == OnExhausted::Block {
            return charged(error, true, context);
        }
        return Decision::Discard {
            reason: DiscardReason::Crashed,
            code: None,
            attempts: context.attempts,
            error,
        };
    }
    Decision::Wait {
        pause: back_off(UNCHARGED_BASE, UNCHARGED_MAX, panics, context.jitter),
        strikes: context.strikes,
        full: 0,
        panics,
        repeat: true,
        error,
    }
}

fn charged(error: String, repeat: bool, context: &Context<'_>) -> Decision {
    let attempts = context.attempts.saturating_add(1);
    if !context.policy.exhausted(attempts) {
        return Decision::Retry {
            attempts,
            pause: context.policy.pause(attempts, context.jitter),
            repeat,
            error,
        };
    }
    match context.policy.on_exhausted {
        OnExhausted::Discard => Decision::Discard {
            reason: DiscardReason::RetryBudget,
            code: None,
            attempts,
            error,
        },
        OnExhausted::Block => Decision::Retry {
            attempts,
            pause: BLOCKED,
            repeat,
            error,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        max_attempts: 3,
        base: Duration::from_secs(2),
        max: Duration::from_secs(256),
        on_exhausted: OnExhausted::Discard,
    };

    fn context(attempts: u32, strikes: u32, others_succeed: bool) -> Context<'static> {
        Context {
            policy: &POLICY,
            attempts,
            strikes,
            full: 0,
            panics: 0,
            others_succeed,
            jitter: 0.0,
        }
    }

    fn failed(error: PublishError) -> Reply {
        Reply::Answered(Err(error))
    }

    #[test]
    fn a_sink_without_room_charges_nothing_whatever_others_manage_and_is_asked_less_and_less() {
        let mut full = 0;
        let mut longest = Duration::ZERO;
        for _ in 0..100 {
            let context = Context {
                full,
                ..context(0, 2, true)
            };
            match decide(failed(PublishError::full("maximum messages")), &context) {
                Decision::Wait {
                    pause,
                    strikes: 2,
                    full: next,
                    repeat: false,
                    ..
                } => {
                    full = next;
                    longest = longest.max(pause);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((full, longest), (100, UNCHARGED_MAX));
    }

    #[test]
    fn the_third_panic_in_a_row_sets_the_event_aside_unless_its_key_is_to_be_blocked() {
        const BLOCK: Policy = Policy {
            on_exhausted: OnExhausted::Block,
            ..POLICY
        };
        let decided = |policy, panics| {
            let context = Context {
                policy,
                panics,
                ..context(0, 0, true)
            };
            decide(failed(PublishError::panicked("index")), &context)
        };
        for (before, after) in [(0, 1), (1, 2)] {
            let Decision::Wait { panics, .. } = decided(&POLICY, before) else {
                panic!("set aside early");
            };
            assert_eq!(panics, after);
        }
        assert!(matches!(
            decided(&POLICY, 2),
            Decision::Discard {
                reason: DiscardReason::Crashed,
                attempts: 0,
                ..
            }
        ));
        assert!(matches!(decided(&BLOCK, 2), Decision::Retry { .. }));
    }

    #[test]
    fn an_outage_charges_nothing_however_long_it_lasts() {
        for strikes in 0..10_000 {
            let answer = decide(
                failed(PublishError::unavailable("full")),
                &context(0, strikes, false),
            );
            assert!(matches!(answer, Decision::Wait { .. }), "{answer:?}");
            let answer = decide(
                failed(PublishError::connection_lost("reset")),
                &context(0, strikes, true),
            );
            assert_eq!(answer, offer(true, true));
        }
    }

    #[test]
    fn after_an_outage_of_any_length_work_goes_on_soon() {
        for kind in [
            PublishError::unavailable("no stream"),
            PublishError::full("maximum messages"),
            PublishError::unknown("no answer"),
        ] {
            let context = Context {
                full: 1_000,
                jitter: 1.0,
                ..context(0, 1_000, false)
            };
            let Decision::Wait { pause, .. } = decide(failed(kind), &context) else {
                panic!("charged");
            };
            assert!(pause <= OUTAGE_MAX.mul_f64(1.25), "{pause:?}");
        }
    }

    #[test]
    fn an_event_that_keeps_failing_while_others_succeed_is_charged() {
        let error = || failed(PublishError::unavailable("no stream for this subject"));
        assert!(matches!(
            decide(error(), &context(0, 0, true)),
            Decision::Wait { strikes: 1, .. }
        ));
        assert!(matches!(
            decide(error(), &context(0, 2, true)),
            Decision::Retry { attempts: 1, .. }
        ));
    }

    #[test]
    fn an_unknown_outcome_is_asked_again_soon_and_marked_as_a_repeat() {
        match decide(
            failed(PublishError::unknown("no answer")),
            &context(0, 0, false),
        ) {
            Decision::Wait { pause, repeat, .. } => {
                assert!(repeat && pause < Duration::from_millis(200));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_budget_ends_in_a_discard_or_a_block() {
        let error = || failed(PublishError::retryable("500"));
        assert!(matches!(
            decide(error(), &context(1, 0, true)),
            Decision::Retry { attempts: 2, .. }
        ));
        assert!(matches!(
            decide(error(), &context(2, 0, true)),
            Decision::Discard {
                reason: DiscardReason::RetryBudget,
                attempts: 3,
                ..
            }
        ));
        let block = Policy {
            on_exhausted: OnExhausted::Block,
            ..POLICY
        };
        let context = Context {
            policy: &block,
            ..context(2, 0, true)
        };
        assert!(matches!(
            decide(error(), &context),
            Decision::Retry { pause: BLOCKED, .. }
        ));
    }

    #[test]
    fn a_rejected_event_is_discarded_at_once_with_the_sinks_word() {
        let answer = decide(
            failed(PublishError::rejected("too_large", "70,000 bytes")),
            &context(0, 0, true),
        );
        assert!(matches!(
            answer,
            Decision::Discard {
                reason: DiscardReason::Permanent,
                code: Some("too_large"),
                ..
            }
        ));
    }

    #[test]
    fn attempts_near_the_end_of_their_range_do_not_wrap() {
        let answer = decide(
            failed(PublishError::retryable("x")),
            &context(u32::MAX, 0, true),
        );
        assert!(matches!(
            answer,
            Decision::Discard {
                attempts: u32::MAX,
                ..
            }
        ));
    }
}
