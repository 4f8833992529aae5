//! Is it still the history that was read? Pure: a renewal tells where the database stands, and this compares.

use crate::lease::Deadline;
use crate::source::Renewed;

/// What was seen of a database's history.
#[derive(Debug)]
pub struct History {
    incarnation: String,
    /// The highest seq that the database was seen to have handed out.
    last_seq: i64,
    /// The same, when it was last certain that reading was not ahead of it.
    certain: i64,
    /// How far reading had come at this moment.
    read: Option<(Deadline, i64)>,
}

impl History {
    /// As opening found it.
    pub fn new(at: &Renewed) -> Self {
        Self {
            incarnation: at.incarnation.clone(),
            last_seq: at.last_seq,
            certain: at.last_seq,
            read: None,
        }
    }

    /// Has another history begun, as a renewal shows that was sent at `sent`? Reading has come as far as `cursor`
    /// now. Says why.
    pub fn ended_by(
        &mut self,
        renewed: &Renewed,
        sent: Deadline,
        now: Deadline,
        cursor: i64,
    ) -> Option<&'static str> {
        let read = self.read.replace((now, cursor));

        let before = std::mem::replace(&mut self.last_seq, renewed.last_seq);
        if renewed.incarnation != self.incarnation {
            return Some("the database was restarted, restored or failed over");
        }
        if renewed.last_seq < before {
            return Some("the sequence went back: a restore or a failover");
        }
        // Only what had been read before the question was asked can be ahead of its answer. A row whose number
        // somebody chose may stand there as well: then new numbers below it are what matters.
        let ahead = read.is_some_and(|(at, cursor)| at <= sent && renewed.last_seq < cursor);
        if ahead && renewed.last_seq != self.certain {
            return Some("the sequence hands out numbers below those already read");
        }
        if cursor <= renewed.last_seq {
            self.certain = renewed.last_seq;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(last_seq: i64) -> Renewed {
        Renewed {
            held: Vec::new(),
            incarnation: "a".to_owned(),
            last_seq,
        }
    }

    /// What renewals show, each sent a second after the one before was looked at: `(last_seq, cursor then)`.
    fn ended(renewals: &[(i64, i64)]) -> Vec<bool> {
        let mut history = History::new(&at(5));
        let mut now = Deadline::now();
        let mut ended = Vec::new();
        for (last_seq, cursor) in renewals {
            let sent = now.after(Duration::from_secs(1));
            now = sent.after(Duration::from_millis(10));
            let why = history.ended_by(&at(*last_seq), sent, now, *cursor);
            ended.push(why.is_some());
        }
        ended
    }

    #[test]
    fn another_incarnation_or_a_lower_number_is_another_history() {
        assert_eq!(ended(&[(5, 5), (9, 9), (8, 9)]), [false, false, true]);
        let now = Deadline::now();
        let mut other = at(5);
        other.incarnation = "b".to_owned();
        assert!(History::new(&at(5)).ended_by(&other, now, now, 5).is_some());
    }

    #[test]
    fn a_jump_and_a_return_between_two_renewals_shows_in_what_was_read() {
        assert_eq!(
            ended(&[(5, 5), (105, 5_000_000), (105, 5_000_000)]),
            [false, false, true]
        );
    }

    #[test]
    fn what_was_read_after_the_question_may_be_ahead_of_the_answer() {
        assert_eq!(ended(&[(100, 150), (300, 320), (400, 500)]), [false; 3]);
        let (sent, now) = (
            Deadline::now(),
            Deadline::now().after(Duration::from_secs(9)),
        );
        let mut history = History::new(&at(5));
        assert!(history.ended_by(&at(100), sent, now, 150).is_none());
        // A late look: the question was asked before that.
        assert!(history.ended_by(&at(120), sent, now, 150).is_none());
    }

    #[test]
    fn a_chosen_number_alone_is_no_reason() {
        let chosen = i64::MAX;
        assert_eq!(
            ended(&[(5, chosen), (5, chosen), (6, chosen)]),
            [false, false, true]
        );
    }
}
