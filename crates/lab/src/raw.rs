//! Faults before SSH begins: the behaviour of a host in place of its identification string and the key exchange.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fault::{Fault, Kind};
use crate::wire::Wire;

/// Acts out a fault until its end, or until the client closes. Returns the connection if the fault is of another kind.
pub(crate) async fn play(fault: &Fault, mut wire: Wire) -> Option<Wire> {
    // Errors are ignored: mostly the client has closed the connection.
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
            // 252 bytes with 8 bytes of padding: a KEXINIT (RFC 4253 section 7.1) with lists that exceed the packet.
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

/// The end of a fault, after its last byte.
enum Then {
    HangUp,
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

/// Reads until the client closes, so that the journal has the number of bytes.
async fn drain(wire: &mut Wire) {
    let mut scratch = [0; 1024];
    while matches!(wire.read(&mut scratch).await, Ok(read) if read > 0) {}
}

/// The same bytes in each run: a long part without a line feed, and no `SSH-`.
fn garbage(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(22);
    (0..length).map(|_| random.u8(..)).filter(|byte| *byte != b'S').collect()
}

/// Identification string of a host (RFC 4253 section 4.2).
const GREETING: &[u8] = concat!("SSH-2.0-PenstockLab_", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();
