//! One connection to a NATS server, which ends with the first thing that goes wrong and leaves nothing behind.
//!
//! async-nats 0.51 reconnects by itself and then sends what it still holds: commands that were queued
//! before the loss leave behind newer ones, and a publish whose caller has long given up is stored all the
//! same. Dropping its handles does not help either: its task first writes what is queued, and while the
//! socket takes nothing it does not even notice. So the client lives on a small runtime of its own,
//! driven by a thread of its own, and a connection ends by ending that runtime: task, socket and
//! everything buffered go with it. What the operating system had already taken may still arrive.
//!
//! A reconnect is recognised where the client cannot avoid passing, at its reconnect delay, and waits there for
//! the end of the runtime.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerError, Subject,
};
use futures_util::StreamExt;
use tokio::sync::{Notify, oneshot, watch};

use super::inbox::{Expected, Inbox, Question, Reply};
use super::target::Target;
use crate::sink::SinkError;

/// Limit for establishing a connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A silent connection is noticed after three of these, within the 15 s in which it has to show.
const PING_INTERVAL: Duration = Duration::from_secs(4);

/// Commands queued inside the client. Few, because they are what the client would keep.
const COMMANDS: usize = 128;

/// Answers queued for the inbox. The client throws answers away beyond it, so it is more than can be in flight;
/// memory is taken only for what is there.
const ANSWERS: usize = 1 << 20;

/// The connection. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    inbox: Arc<Inbox>,
    /// Closed when the thread has ended.
    ended: watch::Receiver<()>,
}

/// What the client's callbacks tell.
#[derive(Debug)]
struct Watch {
    inbox: Arc<Inbox>,
    established: AtomicBool,
    /// The client tries to reconnect.
    broken: Notify,
    /// The server's last complaint, which usually explains why it closes the connection.
    complaint: Mutex<Option<String>>,
}

impl Link {
    /// Connects. Dropping the future abandons the attempt.
    pub(super) async fn open(target: &Target, name: &str) -> Result<Self, SinkError> {
        let options = target.connect_options().await?;
        let watch = Arc::new(Watch {
            inbox: Arc::new(Inbox::new(format!(
                "_INBOX.{}",
                uuid::Uuid::new_v4().simple()
            ))),
            established: AtomicBool::new(false),
            broken: Notify::new(),
            complaint: Mutex::new(None),
        });
        let options = watch.observe(options).name(format!("outboxd {name}"));
        let (opened, client) = oneshot::channel();
        let (running, ended) = watch::channel(());
        let inbox = Arc::clone(&watch.inbox);
        let servers = target.servers.clone();
        std::thread::Builder::new()
            .name("outboxd-nats".to_owned())
            .spawn(move || {
                // Dropped last, when everything else of the thread is gone.
                let _running = running;
                let _end = EndOnDrop(Arc::clone(&watch.inbox));
                drive(&watch, options, servers, opened);
            })
            .map_err(|error| SinkError {
                message: format!("no thread for the connection: {error}"),
                source: Some(Box::new(error)),
            })?;
        match client.await {
            Ok(Ok(client)) => Ok(Self {
                client,
                inbox,
                ended,
            }),
            Ok(Err(error)) => Err(refusal(target, error)),
            Err(_) => Err(SinkError::new("the connection's thread ended early")),
        }
    }

    /// The client, for sending only: answers come through [`Link::expect`].
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Who waits on this connection.
    pub(super) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Asks `subject` and waits for one answer.
    ///
    /// # Errors
    /// In words: lost, no answer in time, nobody there, or forbidden.
    pub(super) async fn request(
        &self,
        subject: &str,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<bytes::Bytes, RequestError> {
        let mut expected = self
            .inbox
            .expect(subject, Question::Request)
            .map_err(RequestError::Lost)?;
        let asked = async {
            let reply_to = expected.reply_to();
            self.client
                .publish_with_reply(subject.to_owned(), reply_to, body.into())
                .await
                .map_err(|error| RequestError::Lost(error.to_string()))?;
            Ok(expected.reply().await)
        };
        match tokio::time::timeout(timeout, asked).await {
            Ok(answer) => match answer? {
                Some(Reply::Body(body)) => Ok(body),
                Some(Reply::NoResponders) => Err(RequestError::NoResponders),
                Some(Reply::Forbidden) => Err(RequestError::Forbidden),
                Some(Reply::Ack(_)) | None => Err(RequestError::Lost(
                    self.inbox.lost.reason().unwrap_or_default(),
                )),
            },
            Err(_) => Err(RequestError::TimedOut),
        }
    }

    /// Registers a publish before it is sent.
    ///
    /// # Errors
    /// The reason for which the connection was lost.
    pub(super) fn expect(&self, subject: Subject) -> Result<Expected, String> {
        self.inbox.expect(subject, Question::Publish)
    }

    /// Registers a message of which any answer counts.
    ///
    /// # Errors
    /// The reason for which the connection was lost.
    pub(super) fn expect_any(&self, subject: Subject) -> Result<Expected, String> {
        self.inbox.expect(subject, Question::Request)
    }

    /// Ends the connection and returns when nothing of it is left.
    pub(super) async fn close(&self, reason: &str) {
        self.inbox.lose(reason);
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inbox.lose("the session was dropped");
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(super) enum RequestError {
    Lost(String),
    TimedOut,
    NoResponders,
    Forbidden,
}

/// A thread that dies in whatever way takes its session with it.
struct EndOnDrop(Arc<Inbox>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.lose("the connection ended");
    }
}

/// The thread: connects, passes answers on, and ends with the connection.
fn drive(
    watch: &Watch,
    options: ConnectOptions,
    servers: Vec<async_nats::ServerAddr>,
    opened: oneshot::Sender<Result<Client, ConnectError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = opened.send(Err(error.into()));
            return;
        }
    };
    runtime.block_on(live(watch, options, servers, opened));
    // Does not wait for a name lookup that may still be going on.
    runtime.shutdown_background();
}

async fn live(
    watch: &Watch,
    options: ConnectOptions,
    servers: Vec<async_nats::ServerAddr>,
    mut opened: oneshot::Sender<Result<Client, ConnectError>>,
) {
    let inbox = &watch.inbox;
    let connected = tokio::select! {
        connected = options.connect(servers) => connected,
        () = opened.closed() => return,
    };
    // The client's tasks have not run yet: they share this thread, and it has not yielded since they were
    // spawned. So no reconnect can come before this.
    watch.established.store(true, Ordering::Release);
    let client = match connected {
        Ok(client) => client,
        Err(error) => {
            let _ = opened.send(Err(error));
            return;
        }
    };
    let Ok(mut answers) = client.subscribe(inbox.pattern()).await else {
        let _ = opened.send(Err(ConnectError::new(ConnectErrorKind::Io)));
        return;
    };
    if opened.send(Ok(client)).is_err() {
        return;
    }
    let reading = async {
        while let Some(message) = answers.next().await {
            inbox.answered(message);
        }
    };
    tokio::select! {
        _ = inbox.lost.wait() => {}
        () = reading => watch.lose(),
        () = watch.broken.notified() => {
            // Lets the callback task say first what the server complained about.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            watch.lose();
        }
    }
}

impl Watch {
    fn observe(self: &Arc<Self>, options: ConnectOptions) -> ConnectOptions {
        let (on_event, on_reconnect) = (Arc::clone(self), Arc::clone(self));
        options
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(COMMANDS)
            .subscription_capacity(ANSWERS)
            .event_callback(move |event| {
                on_event.event(event);
                std::future::ready(())
            })
            .reconnect_delay_callback(move |_| on_reconnect.reconnect_delay())
    }

    fn reconnect_delay(&self) -> Duration {
        if !self.established.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.broken.notify_one();
        // Longer than any process lives, and short enough for every clock.
        Duration::from_secs(365 * 24 * 3_600)
    }

    fn event(&self, event: Event) {
        match event {
            Event::ServerError(ServerError::Other(words)) => self.complaint(words),
            Event::ServerError(other) => self.complaint(other.to_string()),
            Event::SlowConsumer(_) => {
                self.complaint("answers came faster than they were read".to_owned())
            }
            other => tracing::debug!(event = %other, "connection event"),
        }
    }

    fn complaint(&self, words: String) {
        if let Some(subject) = forbidden_subject(&words, "publish") {
            self.inbox.forbid(subject);
        } else if forbidden_subject(&words, "subscription").is_some() {
            self.inbox.lose(format!(
                "the server does not let this user subscribe to its own inbox, so no acknowledgement can be read: \
                 allow subscribing to _INBOX.> ({words})"
            ));
        } else {
            tracing::debug!(%words, "the server complains");
            *self.last_complaint() = Some(words);
        }
    }

    fn lose(&self) {
        let reason = match self.last_complaint().take() {
            Some(words) => format!("the connection was lost after the server had said: {words}"),
            None => "the connection was lost".to_owned(),
        };
        self.inbox.lose(reason);
    }

    fn last_complaint(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The subject in `Permissions Violation for Publish to "a.b"`, if it is that and about this verb.
fn forbidden_subject<'a>(words: &'a str, verb: &str) -> Option<&'a str> {
    let (what, subject) = words.split_once(" to \"")?;
    let expected = format!("permissions violation for {verb}");
    (what.to_lowercase() == expected)
        .then(|| subject.split_once('"').map(|(subject, _)| subject))
        .flatten()
}

fn refusal(target: &Target, error: ConnectError) -> SinkError {
    let servers = target.shown();
    let words = in_full(&error);
    let message = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            format!("{servers} refused the credentials: check user, password, token or creds_file")
        }
        ConnectErrorKind::TimedOut => {
            format!("{servers} did not answer within {CONNECT_TIMEOUT:?}")
        }
        ConnectErrorKind::Dns => format!("{servers}: the name has no address: {words}"),
        // What goes wrong in the middle of the handshake comes as an I/O error.
        _ if words.contains("invalid peer certificate") && !target.wants_tls() => {
            format!("{servers} asks for TLS: set tls = true (and ca_file for a private authority)")
        }
        _ if words.contains("invalid peer certificate") => {
            format!(
                "{servers}: the server's certificate is not accepted: {words}{}",
                crate::tls::mend(&words)
            )
        }
        // The greeting of a server that speaks no TLS is no part of a handshake.
        _ if target.wants_tls() && words.contains("corrupt message") => format!(
            "{servers} offers no TLS, so nothing was sent: turn TLS on at the server, or set tls = false to send \
             everything, credentials too, in plain text"
        ),
        _ if words.contains("received fatal alert") => format!(
            "{servers} refused the TLS handshake (does it ask for a certificate? set client_cert_file and \
             client_key_file): {words}"
        ),
        ConnectErrorKind::Tls => format!("{servers}: no TLS connection: {words}"),
        _ => format!("{servers} cannot be connected to: {words}"),
    };
    SinkError {
        message,
        source: Some(Box::new(error)),
    }
}

/// An error with its causes.
fn in_full(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::forbidden_subject;

    #[test]
    fn the_servers_words_about_permissions_are_understood() {
        let words = "Permissions Violation for Publish to \"a.b\"";
        assert_eq!(forbidden_subject(words, "publish"), Some("a.b"));
        assert_eq!(forbidden_subject(words, "subscription"), None);
        let words = "Permissions Violation for Subscription to \"_INBOX.x.*\" using queue \"q\"";
        assert_eq!(forbidden_subject(words, "subscription"), Some("_INBOX.x.*"));
        assert_eq!(forbidden_subject("Stale Connection", "publish"), None);
    }
}
