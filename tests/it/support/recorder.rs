//! A wire-tap: a TCP proxy that keeps everything a client says, so that a test can look for what must not
//! have been said in plain text.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The proxy. Dropping it ends its connections.
#[derive(Debug)]
pub struct Recorder {
    port: u16,
    said: Arc<Mutex<Vec<u8>>>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Recorder {
    /// Listens on a free port and leads to `server`.
    pub async fn to(server: impl Into<String>) -> Self {
        let server = server.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let said = Arc::new(Mutex::new(Vec::new()));
        let accepted = Arc::new(AtomicUsize::new(0));
        let (words, count) = (Arc::clone(&said), Arc::clone(&accepted));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(carry(client, server.clone(), Arc::clone(&words)));
            }
        });
        Self {
            port,
            said,
            accepted,
            task,
        }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Did a client say this, in plain text?
    pub fn heard(&self, word: &str) -> bool {
        let said = self.said.lock().unwrap();
        said.windows(word.len()).any(|part| part == word.as_bytes())
    }

    /// Everything said so far, in the order of arrival.
    pub fn said(&self) -> Vec<u8> {
        self.said.lock().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: String, said: Arc<Mutex<Vec<u8>>>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
            said.lock().unwrap().extend_from_slice(&buffer[..n]);
            if to_server.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
        let _ = to_client.shutdown().await;
    };
    tokio::join!(there, back);
}
