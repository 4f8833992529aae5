//! Where the binary's metrics go: a Prometheus registry of its own, read by `/metrics`.

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use crate::telemetry::Telemetry;

/// The meter and its registry. Private to one relay, so that two in one process do not mix.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    provider: SdkMeterProvider,
}

impl Metrics {
    /// An empty registry with a meter behind it.
    ///
    /// # Errors
    /// The exporter could not register itself, which a new registry does not refuse.
    pub fn new() -> Result<Self, String> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(|error| format!("cannot set up metrics: {error}"))?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        Ok(Self { registry, provider })
    }

    /// The relay's instruments on this meter.
    pub fn telemetry(&self) -> Telemetry {
        Telemetry::new(&self.provider.meter("outboxd"))
    }

    /// Everything in Prometheus' text format.
    ///
    /// # Errors
    /// A metric that has no such form.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::DiscardReason;

    #[test]
    fn the_names_are_those_that_dashboards_know() {
        let metrics = Metrics::new().expect("metrics");
        let telemetry = metrics.telemetry();
        telemetry.announce("orders", &["events"]);
        telemetry.published("orders", "events", 3);
        telemetry.discarded("orders", "events", DiscardReason::RetryBudget);
        telemetry.oldest_ready_age("orders", 1.5);
        let text = metrics.render().expect("renders");
        for line in [
            r#"event_outbox_published_total{database="orders",sink="events"} 3"#,
            r#"event_outbox_retried_total{database="orders",sink="events"} 0"#,
            r#"event_outbox_discarded_total{database="orders",reason="retry_budget",sink="events"} 1"#,
            r#"event_outbox_discarded_total{database="orders",reason="permanent",sink="events"} 0"#,
            r#"event_outbox_unrouted_total{database="orders"} 0"#,
            r#"event_outbox_lease_lost_total{database="orders"} 0"#,
            r#"event_outbox_enqueue_failed_total{database="orders"} 0"#,
            r#"event_outbox_oldest_ready_age_seconds{database="orders"} 1.5"#,
            r#"event_outbox_missed_total{database="orders"} 0"#,
            r#"event_outbox_inversions_total{database="orders"} 0"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(
            !text.contains("otel_scope") && !text.contains("target_info"),
            "{text}"
        );
    }
}
