//! When to look again: polling while the rate is high, listening while it is low.
//!
//! ```text
//!   polling ──low rate, channel open──> arming (mark set; the writers of that moment may not have seen it)
//!      ^                                   │ they ended
//!      └──high rate, or channel lost── listening
//! ```

use super::gaps::Watch;
use crate::source::Writers;

/// Shortest pause between polls, milliseconds.
const POLL_MIN: u64 = 5;
/// Longest pause while a gap may fill or writers are watched, milliseconds.
const WATCH_MAX: u64 = 100;
/// Events a second below which listening is cheaper, and above which polling is.
const LOW_RATE: u64 = 200;
const HIGH_RATE: u64 = 500;
/// Length of the window that measures the rate, milliseconds.
const WINDOW: u64 = 1_000;
/// How long writers are asked to notify, milliseconds; renewed at half of it.
const MARK: u64 = 120_000;
/// Pause after the mark could not be written, milliseconds.
const MARK_AGAIN: u64 = 1_000;

/// What the mark should become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Ask writers to notify for so many milliseconds.
    Set(u64),
    /// Tell them to stop.
    Clear,
}

#[derive(Debug)]
enum Mode {
    Polling,
    /// The mark is being set, or was set and writers that may have missed it are watched.
    Arming(Option<Watch>),
    Listening,
}

/// The pace of one claimer. Times are milliseconds on its clock.
#[derive(Debug)]
pub struct Pulse {
    mode: Mode,
    /// The wake-up channel is open.
    channel: bool,
    /// Longest pause without a channel, and with one.
    poll_max: u64,
    fallback: u64,
    pause: u64,
    last_poll: u64,
    /// The next poll is due now, whatever the pause.
    at_once: bool,
    window_start: u64,
    window_events: u64,
    rate: u64,
    mark_until: u64,
    /// After a failure: not before this.
    mark_again: u64,
}

impl Pulse {
    /// Polling, as fast as events come and at least every `poll_max`; beside an open channel every `fallback`.
    pub fn new(poll_max: u64, fallback: u64, now: u64) -> Self {
        Self {
            mode: Mode::Polling,
            channel: false,
            poll_max: poll_max.max(POLL_MIN),
            fallback: fallback.max(POLL_MIN),
            pause: POLL_MIN,
            last_poll: now,
            at_once: false,
            window_start: now,
            window_events: 0,
            rate: 0,
            mark_until: 0,
            mark_again: 0,
        }
    }

    /// The wake-up channel opened or was lost. After either, notifications may have been missed.
    pub fn channel(&mut self, open: bool) {
        self.channel = open;
        self.mode = Mode::Polling;
        self.pause = POLL_MIN;
    }

    /// A poll begins.
    pub fn began(&mut self, now: u64) {
        self.at_once = false;
        self.last_poll = now;
    }

    /// A poll saw `events` new rows.
    pub fn polled(&mut self, events: u64, now: u64) {
        self.last_poll = now;
        self.window_events += events;
        let span = now.saturating_sub(self.window_start);
        if span >= WINDOW {
            self.rate = self.window_events * 1_000 / span;
            self.window_start = now;
            self.window_events = 0;
        }
        // At a high rate an empty poll only fell between two transactions.
        self.pause = if events > 0 || self.rate >= HIGH_RATE {
            POLL_MIN
        } else {
            (self.pause * 2).min(self.poll_max)
        };
    }

    /// Someone waits for a row that may show any moment: look soon again.
    pub fn hurry(&mut self) {
        self.pause = POLL_MIN;
    }

    /// Events a second, over the last full window.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// When to poll next. `youngest_gap` is when the youngest open gap was seen.
    pub fn next_poll(&self, youngest_gap: Option<u64>, now: u64) -> u64 {
        if self.at_once {
            return now;
        }
        let mut pause = match &self.mode {
            Mode::Polling => self.pause,
            Mode::Arming(_) => self.pause.min(WATCH_MAX),
            Mode::Listening => self.fallback,
        };
        if let Some(since) = youngest_gap {
            let age = now.saturating_sub(since);
            pause = pause.min((age / 8).clamp(POLL_MIN, WATCH_MAX));
        }
        self.last_poll.saturating_add(pause)
    }

    /// What the mark should become now, if anything changes.
    pub fn mark(&mut self, now: u64) -> Option<Mark> {
        if !self.channel || now < self.mark_again {
            return None;
        }
        let busy = self.rate >= HIGH_RATE || self.window_events >= HIGH_RATE;
        match &self.mode {
            Mode::Polling if self.rate < LOW_RATE && self.window_events < LOW_RATE => {
                self.mode = Mode::Arming(None);
                self.mark_until = now + MARK;
                Some(Mark::Set(MARK))
            }
            Mode::Arming(_) | Mode::Listening if busy => {
                self.mode = Mode::Polling;
                self.pause = POLL_MIN;
                self.mark_until = 0;
                Some(Mark::Clear)
            }
            Mode::Listening if self.mark_until.saturating_sub(now) < MARK / 2 => {
                self.mark_until = now + MARK;
                Some(Mark::Set(MARK))
            }
            _ => None,
        }
    }

    /// When the mark has to be renewed, however long the pause between polls is.
    pub fn renew_at(&self) -> Option<u64> {
        self.is_listening()
            .then(|| self.mark_until.saturating_sub(MARK / 2) + 1)
    }

    /// Setting the mark failed: poll on and try again later.
    pub fn mark_failed(&mut self, now: u64) {
        self.mode = Mode::Polling;
        self.mark_again = now + MARK_AGAIN;
    }

    /// Writers have to be watched: the mark is set, some of them may not have seen it.
    pub fn watches(&self) -> bool {
        matches!(self.mode, Mode::Arming(_))
    }

    /// Takes in who is writing, asked after the mark was set (`None`: nobody can be in flight).
    pub fn observe(&mut self, writers: Option<&Writers>) {
        let ended = match (&mut self.mode, writers) {
            (Mode::Arming(watch), Some(writers)) => match watch {
                Some(watch) => watch.observe(writers),
                None => {
                    let mut fresh = Watch::new(writers);
                    let ended = fresh.observe(writers);
                    *watch = Some(fresh);
                    ended
                }
            },
            (Mode::Arming(_), None) => true,
            _ => false,
        };
        if ended {
            self.mode = Mode::Listening;
            // One more poll after the last of them ended, then silence.
            self.at_once = true;
        }
    }

    /// Nothing but a wake-up is waited for.
    pub fn is_listening(&self) -> bool {
        matches!(self.mode, Mode::Listening)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writers(names: &[&str]) -> Writers {
        Writers {
            running: names.iter().map(|n| (*n).into()).collect(),
            prepared: Vec::new(),
        }
    }

    #[test]
    fn without_a_channel_the_pause_grows_to_its_bound_and_falls_with_the_first_event() {
        let mut pulse = Pulse::new(1_000, 30_000, 0);
        for _ in 0..20 {
            pulse.polled(0, 0);
        }
        assert_eq!(pulse.next_poll(None, 0), 1_000);
        assert_eq!(pulse.mark(0), None);
        pulse.polled(1, 0);
        assert_eq!(pulse.next_poll(None, 0), POLL_MIN);
    }

    #[test]
    fn listening_begins_only_when_writers_that_may_have_missed_the_mark_have_ended() {
        let mut pulse = Pulse::new(1_000, 30_000, 0);
        pulse.channel(true);
        assert_eq!(pulse.mark(0), Some(Mark::Set(MARK)));
        pulse.observe(Some(&writers(&["3/1"])));
        assert!(!pulse.is_listening());
        assert!(pulse.next_poll(None, 0) <= WATCH_MAX);
        pulse.observe(Some(&writers(&["4/1"])));
        assert!(pulse.is_listening());
        // However young the clock is.
        assert_eq!(pulse.next_poll(None, 40), 40, "one poll more at once");
        pulse.polled(0, 41);
        assert_eq!(
            pulse.next_poll(None, 41),
            41,
            "a poll from before is not that one"
        );
        pulse.began(42);
        pulse.polled(0, 43);
        assert_eq!(pulse.next_poll(None, 43), 30_043);
    }

    #[test]
    fn a_high_rate_turns_to_polling_and_clears_the_mark() {
        let mut pulse = Pulse::new(1_000, 30_000, 0);
        pulse.channel(true);
        pulse.mark(0);
        pulse.observe(None);
        assert!(pulse.is_listening());
        pulse.polled(600, 10);
        assert_eq!(pulse.mark(10), Some(Mark::Clear));
        assert_eq!(
            pulse.mark(11),
            None,
            "no way back before the rate has fallen"
        );
        pulse.polled(0, 1_010);
        pulse.polled(0, 2_020);
        assert_eq!(pulse.mark(2_020), Some(Mark::Set(MARK)));
    }

    #[test]
    fn an_open_gap_keeps_looking_and_an_old_one_less_often() {
        let mut pulse = Pulse::new(1_000, 30_000, 0);
        pulse.channel(true);
        pulse.mark(0);
        pulse.observe(None);
        pulse.began(1_000);
        pulse.polled(0, 1_000);
        assert_eq!(pulse.next_poll(Some(1_000), 1_000), 1_000 + POLL_MIN);
        assert_eq!(pulse.next_poll(Some(0), 100_000), 1_000 + WATCH_MAX);
    }

    #[test]
    fn the_mark_is_renewed_in_time_and_a_lost_channel_means_polling() {
        let mut pulse = Pulse::new(1_000, 30_000, 0);
        pulse.channel(true);
        pulse.mark(0);
        pulse.observe(None);
        assert_eq!(pulse.mark(10), None);
        let at = pulse.renew_at().expect("listening");
        assert!(at < MARK, "the mark ends before it is renewed");
        assert_eq!(pulse.mark(at), Some(Mark::Set(MARK)));
        pulse.channel(false);
        assert!(!pulse.is_listening());
        assert!(pulse.next_poll(None, 0) <= 1_000);
    }
}
