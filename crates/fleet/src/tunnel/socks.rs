//! A SOCKS5 proxy; the host makes the connections. `hosts/src/tunnel/socks.rs` parses the messages.

use std::time::Duration;

use hosts::tunnel::socks::{LONGEST, Reply, Step, WELCOME, greeting, reply, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::awake::within;
use super::connection::{Links, Near, copy, open};
use super::engine::said;
use super::status::Meter;

/// Time limit for the SOCKS messages of a client, since each client takes one of a limited number of places.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves one client until its connection ends.
pub(crate) async fn carry(mut stream: Box<dyn Near>, links: Links, meter: &Meter) -> Result<(), String> {
    let asked = within(PATIENCE, async {
        let mut bytes = Vec::new();
        read(&mut stream, &mut bytes, greeting).await?;
        stream.write_all(&WELCOME).await.map_err(|error| error.to_string())?;
        let to = read(&mut stream, &mut bytes, request).await?;
        Ok::<_, String>((to, bytes))
    });
    let (to, early) = asked.await.map_err(|_| "a client sent no destination".to_owned())??;
    let mut far = match open(&*stream, &to, links).await {
        Ok(far) => far,
        Err(why) => {
            let _ = stream.write_all(&reply(Reply::of(why.reason))).await;
            return Err(format!("{to}: {}", said(&why)));
        }
    };
    stream.write_all(&reply(Reply::Succeeded)).await.map_err(|error| error.to_string())?;
    if !early.is_empty() {
        far.write_all(&early).await.map_err(|error| error.to_string())?;
    }
    copy(stream, far, meter).await;
    Ok(())
}

/// Reads one message. Bytes after the message stay in `bytes`.
async fn read<T>(
    stream: &mut Box<dyn Near>,
    bytes: &mut Vec<u8>,
    parse: fn(&[u8]) -> Step<T>,
) -> Result<T, String> {
    loop {
        match parse(bytes) {
            Step::Done(message, used) => {
                bytes.drain(..used);
                return Ok(message);
            }
            Step::Refuse(answer, why) => {
                let _ = stream.write_all(&answer).await;
                return Err(why.to_owned());
            }
            Step::More if bytes.len() > LONGEST => return Err("an endless SOCKS message".to_owned()),
            Step::More => {}
        }
        let mut buffer = [0; LONGEST];
        match stream.read(&mut buffer).await {
            Ok(0) => return Err("a client closed its connection before it sent a destination".to_owned()),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => return Err(error.to_string()),
        }
    }
}
