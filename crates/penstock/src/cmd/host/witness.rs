//! Witnesses: trusted hosts look at the new host from their own networks, and must see the same key.

use std::collections::BTreeMap;
use std::sync::Arc;

use logic::fleet::ending::Ending;
use logic::identity::{KnownHosts, Name};
use logic::ssh::key::PublicKey;
use ssh::identity::{Identities, Store};
use ssh::{Client, Event, Exec, Keys, Target};

use super::add::Place;
use crate::output::{Failure, plain};

/// More output than this is no list of keys.
const LONGEST: usize = 64 * 1024;

/// What each witness sees when it asks `target` for its keys.
pub(super) async fn ask(
    store: &Store,
    names: &[Name],
    target: &Target,
) -> Result<BTreeMap<Name, Vec<PublicKey>>, Failure> {
    let identities = Arc::new(Identities::load(store.clone()).map_err(super::failure)?);
    let mut seen = BTreeMap::new();
    for name in names {
        let host = super::known(identities.index(), name)?;
        if *host.name() == target.name.parse().map_err(Failure::usage)? {
            return Err(Failure::usage(format!("{name} cannot be its own witness")));
        }
        let client = Client::new(identities.clone(), Arc::new(Keys::new()));
        let witness = Place::default().target(host.name(), Some(host))?;
        let keys = through(&client, &witness, target).await;
        let keys = keys.map_err(|why| Failure::runtime(format!("the witness {name}: {}", plain(&why))))?;
        seen.insert(host.name().clone(), keys);
    }
    Ok(seen)
}

async fn through(client: &Client, witness: &Target, target: &Target) -> Result<Vec<PublicKey>, String> {
    let session = client.connect(witness, &|_| {}).await.map_err(|failure| failure.detail)?;
    // The name of the target is one of ours (no quotes, no white space), or an address.
    let address = target.addresses.known.first().map_or_else(|| target.host.clone(), ToString::to_string);
    let address: Name = address.parse().map_err(|error| format!("{error}"))?;
    let command = format!("ssh-keyscan -T 10 -p {} {address}", target.port);
    let mut process = session.exec(&command, &Exec::default()).await.map_err(|failure| failure.detail)?;
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    loop {
        match process.next().await {
            Some(Event::Stdout(bytes)) if out.len() + bytes.len() <= LONGEST => out.extend_from_slice(&bytes),
            Some(Event::Stderr(bytes)) if complaint.len() + bytes.len() <= LONGEST => {
                complaint.extend_from_slice(&bytes)
            }
            Some(Event::Ended(Ending::Failed(failure))) => return Err(failure.detail),
            Some(Event::Ended(_)) | None => break,
            Some(Event::Started) => {}
            Some(_) => return Err("ssh-keyscan there says too much".into()),
        }
    }
    session.close().await;
    let keys: Vec<PublicKey> =
        KnownHosts::parse(&String::from_utf8_lossy(&out)).lines.into_iter().map(|line| line.key).collect();
    if keys.is_empty() {
        let complaint = String::from_utf8_lossy(&complaint);
        let last = complaint.lines().last().unwrap_or("it says nothing");
        return Err(format!("ssh-keyscan there saw no key: {last}"));
    }
    Ok(keys)
}
