//! A minimal WebSocket client that keeps a connection alive and detects lost messages (RFC 6455).

use crate::client::{Client, End};

pub struct WebSocket {
    client: Client,
}

impl WebSocket {
    /// Upgrades a new connection.
    #[track_caller]
    pub fn open(address: &str, target: &str) -> Self {
        let mut client = Client::connect(address);
        client.send(Self::request(target));
        let answer = client.response();
        assert_eq!(answer.status, 101, "{answer:?}");
        assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer:?}");
        Self { client }
    }

    /// The request for it.
    pub fn request(target: &str) -> Vec<u8> {
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        head.into_bytes()
    }

    /// Sends a part of a frame.
    pub fn send_part(&mut self, bytes: &[u8]) {
        self.client.send(bytes);
    }

    /// Sends a text message (up to 65,535 bytes) and waits for its echo.
    #[track_caller]
    pub fn echo(&mut self, text: &str) {
        let mut frame = vec![0x81];
        match u8::try_from(text.len()) {
            Ok(length) if length < 126 => frame.push(0x80 | length),
            _ => {
                frame.push(0x80 | 126);
                frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            }
        }
        let mask = [0x12, 0x34, 0x56, 0x78];
        frame.extend(mask);
        frame.extend(text.bytes().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.client.send(&frame);
        self.hear(text);
    }

    /// Waits for a text message.
    #[track_caller]
    pub fn hear(&mut self, text: &str) {
        let head = self.client.read_exactly(2);
        assert_eq!(head[0], 0x81, "a whole text frame comes back");
        let length = match head[1] {
            126 => {
                let length = self.client.read_exactly(2);
                usize::from(u16::from_be_bytes([length[0], length[1]]))
            }
            length => usize::from(length),
        };
        assert_eq!(String::from_utf8_lossy(&self.client.read_exactly(length)), text);
    }

    /// Waits until the peer ends the connection.
    pub fn end(&mut self) -> End {
        self.client.read_to_end().1
    }
}
