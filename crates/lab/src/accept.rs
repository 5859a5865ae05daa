//! The accept loop of a host, and the service of each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russh::Disconnect;
use tokio::net::{TcpListener, TcpStream};

use crate::disconnect::{DisconnectHandle, HOSTILE_DISCONNECT};
use crate::fault::{Fault, Kind, Parameter};
use crate::host::Host;
use crate::raw;
use crate::session::Session;
use crate::wire::{Control, OpenConnections, SignatureFault, Wire};

/// Accepts connections until the task is aborted.
pub(crate) async fn accept(host: Arc<Host>, listener: TcpListener, wires: Arc<OpenConnections>) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let connection = host.connections.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::spawn(serve(Arc::clone(&host), connection, stream, from, Arc::clone(&wires)));
            }
            // Descriptors have run out; other connections that close free some.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(
    host: Arc<Host>,
    connection: u64,
    stream: TcpStream,
    from: SocketAddr,
    wires: Arc<OpenConnections>,
) {
    host.note(connection, format_args!("connect from={from}"));
    let _ = stream.set_nodelay(true);
    let fault = host.fault.clone().filter(|fault| fault.applies(connection));
    let spoil = match &fault {
        Some(Fault { kind: Kind::ForgedKey, .. }) => SignatureFault::Signature,
        _ => SignatureFault::Nothing,
    };
    let (wire, control) = Wire::new(stream, spoil, &wires);
    let wire = match &fault {
        Some(fault) => raw::play(fault, wire).await,
        None => Some(wire),
    };
    if let Some(wire) = wire {
        speak(&host, connection, wire, Arc::clone(&control), fault).await;
    }
    let (received, sent) = (control.received(), control.sent());
    host.note(connection, format_args!("close received={received} sent={sent}"));
}

async fn speak(host: &Arc<Host>, connection: u64, wire: Wire, control: Arc<Control>, fault: Option<Fault>) {
    let config = match &fault {
        Some(Fault { kind: Kind::ChangeKey, parameter: Parameter::Every(every), .. })
            if !connection.is_multiple_of(*every) =>
        {
            &host.config
        }
        Some(_) => &host.faulty,
        None => &host.config,
    };
    let disconnect = Arc::new(DisconnectHandle::default());
    let session = Session::new(Arc::clone(host), connection, control, fault, Arc::clone(&disconnect));
    // An error of the connection is ignored here: the journal records its end.
    let Ok(mut running) = russh::server::run_stream(Arc::clone(config), wire, session).await else { return };
    tokio::select! {
        _ = &mut running => return,
        () = disconnect.wanted.notified() => {}
    }
    let text = HOSTILE_DISCONNECT.to_owned();
    let _ = running.handle().disconnect(Disconnect::ByApplication, text, "en".to_owned()).await;
    disconnect.queued.notify_one();
    let _ = running.await;
}
