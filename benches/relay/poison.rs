//! A sink that fails the events of one key, around any other.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outboxd::sink::{Delivery, Lanes, PublishError, Receipt, Session, Sink, SinkError};

/// The key whose events fail.
pub const KEY: &str = "poison";

pub struct Poisoned(pub Arc<dyn Sink>);

struct PoisonedSession(Arc<dyn Session>);

fn poisonous(delivery: &Delivery) -> bool {
    delivery.event.ordering_key.as_deref() == Some(KEY)
}

fn failure() -> PublishError {
    PublishError::retryable("the destination does not like this event")
}

#[async_trait]
impl Sink for Poisoned {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn open(&self) -> Result<Arc<dyn Session>, SinkError> {
        Ok(Arc::new(PoisonedSession(self.0.open().await?)))
    }

    async fn check(&self, kinds: &[String]) -> Result<Vec<String>, SinkError> {
        self.0.check(kinds).await
    }
}

#[async_trait]
impl Session for PoisonedSession {
    async fn publish(
        &self,
        delivery: &Delivery,
        timeout: Duration,
    ) -> Result<Receipt, PublishError> {
        if poisonous(delivery) {
            return Err(failure());
        }
        self.0.publish(delivery, timeout).await
    }

    fn lanes(&self) -> Option<Lanes> {
        self.0.lanes()
    }

    fn mode(&self) -> &'static str {
        self.0.mode()
    }

    /// The first event of the key fails, those behind it are not stored, all others go on.
    async fn publish_batch(
        &self,
        batch: &[Delivery],
        timeout: Duration,
        limit: Duration,
    ) -> Vec<Result<Receipt, PublishError>> {
        let good: Vec<Delivery> = batch.iter().filter(|d| !poisonous(d)).cloned().collect();
        let mut answers = if good.is_empty() {
            Vec::new()
        } else {
            self.0.publish_batch(&good, timeout, limit).await
        }
        .into_iter();
        let mut first = true;
        let answer = |delivery| {
            if !poisonous(delivery) {
                answers.next().unwrap()
            } else if std::mem::take(&mut first) {
                Err(failure())
            } else {
                Err(PublishError::behind())
            }
        };
        batch.iter().map(answer).collect()
    }

    async fn lost(&self) -> String {
        self.0.lost().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
