//! The port of a proxy, on which it listens or refuses.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::Mode;

/// The port: somebody listens on it, or it is only kept from others.
pub(super) struct Door {
    address: SocketAddr,
    listener: Option<TcpListener>,
    mode: watch::Receiver<Mode>,
}

impl Door {
    pub(super) fn new(listener: TcpListener, mode: watch::Receiver<Mode>) -> Self {
        Self {
            address: listener.local_addr().unwrap(),
            listener: Some(listener),
            mode,
        }
    }

    /// The next client; `None`: look again.
    pub(super) async fn accept(&mut self) -> Option<TcpStream> {
        let refuses = *self.mode.borrow_and_update() == Mode::Refuse;
        let listener = match self.listener.take() {
            Some(listener) if !refuses => listener,
            closed => {
                drop(closed);
                let socket = TcpSocket::new_v4().unwrap();
                // Connections of an earlier listener are still on the port.
                socket.set_reuseaddr(true).unwrap();
                socket.bind(self.address).unwrap();
                while *self.mode.borrow_and_update() == Mode::Refuse {
                    self.mode.changed().await.ok()?;
                }
                socket.listen(1024).unwrap()
            }
        };
        let listener = self.listener.insert(listener);
        tokio::select! {
            accepted = listener.accept() => accepted.ok().map(|(client, _)| client),
            _ = self.mode.changed() => None,
        }
    }
}
