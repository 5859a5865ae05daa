//! Faults before there is SSH: what a host does to a connection in place of a greeting and a key exchange.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fault::{Fault, Kind};
use super::wire::Wire;

/// Plays a fault to its end, or until the client is gone. Gives the connection back where the fault is none of these.
pub(super) async fn play(fault: &Fault, mut wire: Wire) -> Option<Wire> {
    // A client that goes first is how most of these end.
    let _: io::Result<()> = match fault.kind {
        Kind::Silent => Ok(()),
        Kind::TurnAway => say(&mut wire, b"Exceeded MaxStartups\r\n", Then::HangUp).await,
        Kind::HangUp => say(&mut wire, b"", Then::HangUp).await,
        Kind::BannerGarbage => say(&mut wire, &garbage(4096), Then::HangUp).await,
        Kind::BannerEndless => for_ever(&mut wire, &[b'A'; 4096]).await,
        Kind::BannerLines => for_ever(&mut wire, b"Authorized use only. There is more to say.\r\n").await,
        Kind::BannerSlow => slowly(&mut wire, fault.number()).await,
        Kind::HangKex => say(&mut wire, GREETING, Then::Wait).await,
        Kind::GarbageKex => {
            // 252 bytes with 8 of padding: a KEXINIT (RFC 4253 section 7.1) whose lists are longer than it.
            let mut packet = vec![0, 0, 0, 252, 8, 20];
            packet.resize(4 + 252, 0xff);
            say(&mut wire, &[GREETING, &packet].concat(), Then::Wait).await
        }
        Kind::GiganticPacket => {
            let packet = [&[0xff; 4][..], &garbage(4096)].concat();
            say(&mut wire, &[GREETING, &packet].concat(), Then::Wait).await
        }
        _ => return Some(wire),
    };
    drain(&mut wire).await;
    None
}

/// What follows the last byte.
enum Then {
    /// The end of the stream.
    HangUp,
    /// Nothing.
    Wait,
}

async fn say(wire: &mut Wire, bytes: &[u8], then: Then) -> io::Result<()> {
    wire.write_all(bytes).await?;
    match then {
        Then::HangUp => wire.shutdown().await,
        Then::Wait => Ok(()),
    }
}

async fn for_ever(wire: &mut Wire, bytes: &[u8]) -> io::Result<()> {
    loop {
        wire.write_all(bytes).await?;
    }
}

async fn slowly(wire: &mut Wire, milliseconds: u64) -> io::Result<()> {
    for byte in GREETING {
        wire.write_all(&[*byte]).await?;
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }
    Ok(())
}

/// Takes what the client sends until it hangs up: the journal says how much that was.
async fn drain(wire: &mut Wire) {
    let mut scratch = [0; 1024];
    while matches!(wire.read(&mut scratch).await, Ok(read) if read > 0) {}
}

/// The same bytes each time: no line feed for long, no `SSH-`.
fn garbage(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(22);
    (0..length).map(|_| random.u8(..)).filter(|byte| *byte != b'S').collect()
}

/// What a host says first (RFC 4253 section 4.2).
const GREETING: &[u8] = concat!("SSH-2.0-PenstockLab_", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
