//! What the faulty network does to bytes, seen by a server that sends back what it reads.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::SOON;
use crate::support::eventually;
use crate::support::proxy::{Mode, Proxy};

/// Sends back what it reads.
struct Echo {
    address: SocketAddr,
    /// How much each of its reads gave.
    reads: Arc<Mutex<Vec<usize>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let reads = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&reads);
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let noted = Arc::clone(&noted);
                open.spawn(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while let Ok(n @ 1..) = client.read(&mut buffer).await {
                        noted.lock().unwrap().push(n);
                        if client.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self {
            address,
            reads,
            task,
        }
    }

    fn heard(&self) -> usize {
        self.reads.lock().unwrap().iter().sum()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Bytes of which no two neighbours are the same.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}

/// Sends bytes through, and gives how much came back with each read.
async fn there_and_back(client: &mut TcpStream, count: usize) -> Vec<usize> {
    let sent = bytes(count);
    let (mut from, mut to) = client.split();
    let read = async {
        let (mut came, mut reads) = (Vec::new(), Vec::new());
        let mut buffer = vec![0; 16 << 10];
        while came.len() < count {
            let n = from.read(&mut buffer).await.unwrap();
            assert!(n > 0, "ended after {} of {count}", came.len());
            came.extend_from_slice(&buffer[..n]);
            reads.push(n);
        }
        (came, reads)
    };
    let (written, (came, reads)) = tokio::join!(to.write_all(&sent), read);
    written.unwrap();
    assert!(came == sent, "what came back is not what was sent");
    reads
}

#[tokio::test]
async fn slices_come_whole_and_in_order_and_are_seen_as_slices() {
    let echo = Echo::start().await;
    let proxy = Proxy::to(echo.address.to_string()).await;
    proxy.set(Mode::Slice(5));
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let back = there_and_back(&mut client, 8_000).await;
    let there = echo.reads.lock().unwrap().clone();
    for reads in [&there, &back] {
        // About 2,700 slices, of which every eighth is waited for.
        assert!(reads.len() > 250, "{} reads", reads.len());
        let mut sizes = BTreeMap::<usize, usize>::new();
        for n in reads {
            *sizes.entry(*n).or_default() += 1;
        }
        assert!((1..=5).all(|n| sizes.contains_key(&n)), "{sizes:?}");
    }
}

#[tokio::test]
async fn a_trickle_takes_its_time_each_way_until_it_is_over() {
    let echo = Echo::start().await;
    let proxy = Proxy::to(echo.address.to_string()).await;
    proxy.set(Mode::Trickle(20_000));
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let began = Instant::now();
    there_and_back(&mut client, 10_000).await;
    let took = began.elapsed();
    assert!(took > Duration::from_millis(480), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");

    // What is on its way when the link gets fast again is not slow any more.
    proxy.set(Mode::Trickle(100));
    let began = Instant::now();
    let heal = async {
        eventually(SOON, "something is through", || async {
            (echo.heard() > 10_000)
                .then_some(())
                .ok_or("nothing".into())
        })
        .await;
        proxy.set(Mode::Pass);
    };
    tokio::join!(there_and_back(&mut client, 10_000), heal);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test]
async fn a_deaf_server_still_talks_and_what_it_missed_ends_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().to_string()).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    proxy.set(Mode::Deaf);
    client.write_all(b"lost").await.unwrap();
    server.write_all(b"news").await.unwrap();
    let mut word = [0; 4];
    let news = tokio::time::timeout(SOON, client.read_exact(&mut word));
    news.await.unwrap().unwrap();
    assert_eq!(&word, b"news");
    let silence = tokio::time::timeout(Duration::from_millis(200), server.read(&mut word)).await;
    assert!(silence.is_err(), "{silence:?}");
    proxy.set(Mode::Pass);
    for end in [&mut client, &mut server] {
        let read = tokio::time::timeout(SOON, end.read(&mut word))
            .await
            .unwrap();
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn nobody_is_let_in_while_open_connections_stay() {
    let echo = Echo::start().await;
    let proxy = Proxy::to(echo.address.to_string()).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    there_and_back(&mut client, 100).await;
    for _ in 0..3 {
        proxy.set(Mode::Refuse);
        eventually(SOON, "connections are refused", || async {
            match TcpStream::connect(proxy.address()).await {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        there_and_back(&mut client, 100).await;
        proxy.set(Mode::Pass);
        eventually(SOON, "connections are taken", || async {
            let again = TcpStream::connect(proxy.address()).await;
            again.map(drop).map_err(|error| error.to_string())
        })
        .await;
        there_and_back(&mut client, 100).await;
    }
    proxy.cut_then(Mode::Refuse).await;
    assert!(client.read(&mut [0]).await.is_err(), "open ones were cut");
}
