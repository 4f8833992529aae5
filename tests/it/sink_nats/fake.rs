//! A scripted NATS server with one stream, for answers that real servers give once in a thousand hours.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use outboxd::sink::PublishErrorKind;
use outboxd::testing::sink::delivery;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::bench::{SOON, UNAVAILABLE, kind, open};

/// Accepts one connection after the other; acknowledges every publish unless told otherwise.
pub struct Server {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    /// What each of the next publishes is answered with; an empty list is silence.
    script: Mutex<VecDeque<Vec<&'static str>>>,
    /// Subjects published to.
    published: Mutex<Vec<String>>,
    reading: watch::Sender<bool>,
    /// Connections that have ended.
    ended: watch::Sender<usize>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            published: Mutex::default(),
            reading: watch::Sender::new(true),
            ended: watch::Sender::new(0),
        });
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = server.serve(stream).await;
                server.ended.send_modify(|ended| *ended += 1);
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The next publish is answered with these bodies, in this order.
    pub fn answer(&self, bodies: &[&'static str]) {
        self.shared
            .script
            .lock()
            .unwrap()
            .push_back(bodies.to_vec());
    }

    /// Leaves everything in the socket until [`Self::read_to_the_end`].
    pub fn stop_reading(&self) {
        self.shared.reading.send_replace(false);
    }

    /// Reads until the first connection has ended; the subjects published to.
    pub async fn read_to_the_end(&self) -> Vec<String> {
        self.shared.reading.send_replace(true);
        let mut ended = self.shared.ended.subscribe();
        ended.wait_for(|ended| *ended > 0).await.unwrap();
        self.published()
    }

    pub fn published(&self) -> Vec<String> {
        self.shared.published.lock().unwrap().clone()
    }
}

impl Shared {
    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        write
            .write_all(
                b"INFO {\"server_id\":\"F\",\"server_name\":\"fake\",\"version\":\"2.15.0\",\"go\":\"\",\
                \"host\":\"\",\"port\":0,\"headers\":true,\"proto\":1,\"max_payload\":1048576}\r\n",
            )
            .await?;
        let mut reading = self.reading.subscribe();
        loop {
            let _ = reading.wait_for(|reading| *reading).await;
            let mut line = String::new();
            tokio::select! {
                length = read.read_line(&mut line) => if length? == 0 { return Ok(()) },
                _ = reading.changed() => if !*reading.borrow() { continue },
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.first().copied() {
                Some("PING") => write.write_all(b"PONG\r\n").await?,
                Some("PUB" | "HPUB") => {
                    let size: usize = words.last().unwrap().parse().unwrap();
                    let mut body = vec![0; size + 2];
                    read.read_exact(&mut body).await?;
                    for answer in self.answers(words[1]) {
                        // The inbox is the only subscription of a session, so its id is known.
                        let head = format!("MSG {} 1 {}\r\n", words[2], answer.len());
                        write.write_all(head.as_bytes()).await?;
                        write.write_all(answer.as_bytes()).await?;
                        write.write_all(b"\r\n").await?;
                    }
                }
                _ => {}
            }
        }
    }

    fn answers(&self, subject: &str) -> Vec<String> {
        if subject.starts_with("$JS.API.STREAM.INFO.") {
            return vec![r#"{"config":{"name":"EVT","duplicate_window":120000000000}}"#.to_owned()];
        }
        let mut published = self.published.lock().unwrap();
        published.push(subject.to_owned());
        let usual = || format!(r#"{{"stream":"EVT","seq":{}}}"#, published.len());
        match self.script.lock().unwrap().pop_front() {
            Some(bodies) => bodies.into_iter().map(str::to_owned).collect(),
            None => vec![usual()],
        }
    }
}

#[tokio::test]
async fn a_duplicate_without_a_sequence_is_repeated_until_a_real_one_comes() {
    let server = Server::start().await;
    server.answer(&[]);
    server.answer(&[r#"{"stream":"EVT","seq":0,"duplicate":true}"#]);
    server.answer(&[r#"{"stream":"EVT","seq":7}"#]);
    let session = open(server.url()).await;
    let short = Duration::from_millis(200);
    for _ in 0..2 {
        let result = session.publish(&delivery(1), short).await;
        assert_eq!(kind(result), PublishErrorKind::Unknown);
    }
    let receipt = session.publish(&delivery(1), SOON).await.unwrap();
    assert_eq!((receipt.position, receipt.duplicate), (Some(7), false));
    assert_eq!(server.published().len(), 3);
}

#[tokio::test]
async fn answers_of_bystanders_are_passed_over() {
    let server = Server::start().await;
    let session = open(server.url()).await;
    server.answer(&["pong", "{}", r#"{"stream":"EVT","seq":7}"#]);
    let receipt = session.publish(&delivery(1), SOON).await.unwrap();
    assert_eq!(receipt.position, Some(7));
    server.answer(&["pong"]);
    let error = session
        .publish(&delivery(2), Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error.kind, UNAVAILABLE);
    assert!(error.message.contains("no stream"), "{error}");
}

#[tokio::test]
async fn an_acknowledgement_from_another_stream_does_not_count() {
    let server = Server::start().await;
    let session = open(server.url()).await;
    server.answer(&[r#"{"stream":"OTHER","seq":7}"#]);
    let error = session.publish(&delivery(1), SOON).await.unwrap_err();
    assert_eq!(error.kind, UNAVAILABLE);
    assert!(error.message.contains("OTHER"), "{error}");
}
