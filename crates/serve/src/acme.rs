//! Certificates from an authority (ACME, RFC 8555): one task for each orders it, and renews it when it is due.
//! `logic/src/acme.rs` decides when. What is issued goes as one file into a certificate directory, which is watched and
//! served like any other.
//!
//! Runs on the slow runtime. Workers only answer the challenges that `acme/challenges.rs` holds.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use config::Config;
use config::types::{Acme, AcmeCertificate};
use instant_acme::{Account, CertificateIdentifier};
use logic::acme::{self as rules, Held, Next, Progress, Reason, Setback, Validity, Window};
use rustls_pki_types::Der;
use tokio::task::AbortHandle;

use crate::account::{Account as Descriptors, OF_ORDER, Purpose};
use crate::events::{Level, timestamp};
use crate::lock::lock;
use crate::state::State;
use crate::tls::Bundle;

mod account;
mod board;
mod challenges;
mod client;
mod fault;
mod kept;
mod order;

use board::Key;
pub use board::{Board, Phase, Standing};
pub use challenges::{ALPN, Challenges};
use client::Client;
use fault::Fault;
use kept::{Files, on_disk};
use order::{Limits, Wanted};

/// Longest time without a look at the clock and the disk: another process may have renewed the certificate, and the
/// clock may have jumped.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Another process is ordering: its certificate may be there after so long.
const BUSY: Duration = Duration::from_secs(5);

/// So long an authority that did not answer is not asked for suggestions: a thousand certificates must not wait for it one
/// after the other.
const SILENCE: Duration = Duration::from_secs(300);

/// Orders and questions at once, for each section.
pub(crate) const ORDERS_AT_ONCE: usize = 4;

/// Runs the tasks. Dropping it ends them.
pub struct Orderer {
    state: Arc<State>,
    sections: HashMap<Arc<str>, Running>,
}

/// The tasks of a section.
struct Running {
    settings: Acme,
    tasks: Vec<AbortHandle>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Orderer {
    /// Without tasks.
    pub fn new(state: Arc<State>) -> Self {
        Self { state, sections: HashMap::new() }
    }

    /// Starts the tasks of new sections and ends those of sections that are gone or have changed.
    /// Must be called on a tokio runtime: the tasks run there.
    pub fn reconcile(&mut self, config: &Config) {
        let is_used = |section: &Acme| {
            let sources = config.listeners.iter().filter_map(|listener| listener.tls.as_ref()?.acme.as_ref());
            sources.into_iter().any(|source| source.name == section.name)
        };
        let mut before = std::mem::take(&mut self.sections);
        for settings in config.acme.iter().filter(|section| is_used(section)) {
            let running = match before.remove(&settings.name) {
                Some(running) if running.settings == *settings => running,
                _ => self.start(settings),
            };
            self.sections.insert(settings.name.clone(), running);
        }
        let is_there = |section: &str, name: &str| {
            let settings = self.sections.get(section).map(|running| &running.settings);
            settings.is_some_and(|settings| settings.certificates.iter().any(|it| *it.name == *name))
        };
        let mut standings = lock(&self.state.acme.standings);
        let gone: Vec<Key> =
            standings.keys().filter(|(section, name)| !is_there(section, name)).cloned().collect();
        for key in gone {
            standings.remove(&key);
            let subject = subject(&key.0, &key.1);
            self.state.forget_degraded(|degraded| degraded == subject);
        }
    }

    fn start(&self, settings: &Acme) -> Running {
        let section = Arc::new(Section {
            settings: settings.clone(),
            account: tokio::sync::Mutex::new(None),
            places: tokio::sync::Semaphore::new(ORDERS_AT_ONCE),
            turns: self.state.account.clone(),
            silent_until: Mutex::default(),
        });
        let task = |certificate: &AcmeCertificate| {
            let job = Job {
                section: section.clone(),
                files: Files::new(settings, certificate),
                certificate: certificate.clone(),
                state: self.state.clone(),
                subject: subject(&settings.name, &certificate.name),
            };
            tokio::spawn(job.run()).abort_handle()
        };
        let mut tasks: Vec<AbortHandle> = settings.certificates.iter().map(task).collect();
        tasks.push(tokio::spawn(clear_away(settings.clone(), self.state.clone())).abort_handle());
        Running { settings: settings.clone(), tasks }
    }
}

/// Removes certificates that nobody orders any more, once their time is over: until then they serve those names that
/// nothing else is for.
async fn clear_away(settings: Acme, state: Arc<State>) {
    loop {
        let section = settings.clone();
        for name in on_disk(move || Ok(kept::remove_unwanted(&section))).await.unwrap_or_default() {
            let message = "removed: it has expired, and is ordered no more";
            state.events.record(Level::Info, subject(&settings.name, &name), message);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn subject(section: &str, name: &str) -> String {
    format!("acme.{section}.{name}")
}

/// What the certificates of a section share.
struct Section {
    settings: Acme,
    account: tokio::sync::Mutex<Option<Opened>>,
    places: tokio::sync::Semaphore,
    /// The account of descriptors: its requests and lock files take turns there.
    turns: Arc<Descriptors>,
    /// Until then the authority is not asked for suggestions: it did not answer.
    silent_until: Mutex<Option<Instant>>,
}

/// An account with the client that speaks for it.
#[derive(Clone)]
struct Opened {
    account: Account,
    client: Client,
}

impl Section {
    /// The account. `None`: another process is registering one.
    async fn account(&self) -> Result<Option<Opened>, (Fault, Option<Duration>)> {
        let mut kept = self.account.lock().await;
        if kept.is_none() {
            let ca = self.settings.ca.clone();
            let turns = self.turns.clone();
            let client =
                on_disk(move || Client::new(ca.as_deref(), turns)).await.map_err(|fault| (fault, None))?;
            let account = account::open(&self.settings, client.clone()).await;
            let account = account.map_err(|fault| (fault, client.take_retry_after()))?;
            *kept = account.map(|account| Opened { account, client });
        }
        Ok(kept.clone())
    }

    /// After a failure everything is read anew: files may have been repaired, URLs may have moved.
    async fn forget_account(&self) {
        *self.account.lock().await = None;
    }
}

/// The care for one certificate.
struct Job {
    section: Arc<Section>,
    certificate: AcmeCertificate,
    files: Files,
    state: Arc<State>,
    subject: String,
}

const NONE_YET: &str = "there is no certificate for these names yet";

/// What came of an order.
enum Done {
    Issued,
    /// Somebody else orders it, or has.
    Elsewhere,
}

/// What the authority suggests for a certificate.
struct Suggestion {
    leaf: Vec<u8>,
    window: Option<Window>,
    ask_again: SystemTime,
}

impl Job {
    async fn run(self) {
        let files = self.files.clone();
        // Whether it can be written is seen at the first order.
        let (mut progress, mut reason) = on_disk(move || Ok(files.progress())).await.unwrap_or_default();
        let mut suggestion: Option<Suggestion> = None;
        if self.held().await.is_none() {
            let why = reason.as_deref().unwrap_or("it is being ordered");
            self.state.degrade(&self.subject, &format!("{NONE_YET}: {why}"));
        }
        loop {
            let bundle = self.held().await;
            let phase = if progress.failures == 0 { Phase::Waiting } else { Phase::Failed };
            if let Some(bundle) = &bundle {
                let next = progress.next(SystemTime::now(), Some(held(bundle, suggestion.as_ref())));
                self.publish(phase, next, &progress, reason.as_deref());
                self.ask_for_suggestion(bundle, &mut suggestion).await;
            }
            let now = SystemTime::now();
            let held = bundle.as_ref().map(|bundle| held(bundle, suggestion.as_ref()));
            let next = progress.next(now, held);
            self.publish(phase, next, &progress, reason.as_deref());
            if bundle.is_some() && progress.failures == 0 {
                self.state.restore(&self.subject);
            }
            if let Ok(wait) = next.at.duration_since(now)
                && !wait.is_zero()
            {
                let ask_again = suggestion.as_ref().and_then(|it| it.ask_again.duration_since(now).ok());
                tokio::time::sleep(wait.min(ask_again.unwrap_or(LOOK_AGAIN)).min(LOOK_AGAIN)).await;
                continue;
            }
            self.publish(Phase::Ordering, next, &progress, reason.as_deref());
            match self.order(bundle.as_ref(), next.reason).await {
                Ok(Done::Elsewhere) => tokio::time::sleep(BUSY).await,
                Ok(Done::Issued) => {
                    progress.issued(SystemTime::now());
                    reason = None;
                    suggestion = None;
                    self.state.acme.issued.fetch_add(1, Relaxed);
                    self.note(&progress, None).await;
                }
                Err((fault, retry_after)) => {
                    self.section.forget_account().await;
                    let now = SystemTime::now();
                    progress.failed(now, fault.setback(), retry_after, fastrand::f64());
                    let words = fault.to_string();
                    self.say_failed(bundle.as_ref(), &words, progress.not_before.unwrap_or(now));
                    self.note(&progress, Some(&words)).await;
                    reason = Some(words);
                }
            }
        }
    }

    /// The certificate that is there, if it is for the names that are wanted now.
    async fn held(&self) -> Option<Bundle> {
        let files = self.files.clone();
        let bundle = on_disk(move || Ok(files.bundle())).await.ok().flatten()?;
        self.certificate.names.iter().all(|name| bundle.facts.names.contains(name)).then_some(bundle)
    }

    /// Asks when the authority would like the certificate to be renewed (RFC 9773), if it is time to ask.
    async fn ask_for_suggestion(&self, bundle: &Bundle, suggestion: &mut Option<Suggestion>) {
        let now = SystemTime::now();
        let before = suggestion.take().filter(|before| before.leaf == bundle.leaf);
        let is_fresh = |before: &Suggestion| {
            let left = before.ask_again.duration_since(now);
            left.is_ok_and(|left| left <= rules::LONGEST_PAUSE)
        };
        if before.as_ref().is_some_and(is_fresh) {
            *suggestion = before;
            return;
        }
        let (mut window, mut asked) = (before.and_then(|before| before.window), None);
        match self.suggested(bundle).await {
            Ok((now_suggested, again)) => {
                if now_suggested.is_some() && now_suggested != window {
                    tracing::debug!(subject = self.subject, "the authority suggests {now_suggested:?}");
                }
                (window, asked) = (now_suggested, Some(again));
            }
            Err(why) => tracing::debug!(subject = self.subject, "no suggestion: {why}"),
        }
        let ask_again = now + rules::poll_again(asked, validity(bundle).lifetime());
        *suggestion = Some(Suggestion { leaf: bundle.leaf.clone(), window, ask_again });
    }

    async fn suggested(&self, bundle: &Bundle) -> Result<(Option<Window>, Duration), String> {
        let Some(id) = identifier(bundle) else { return Err("it names no issuer's key".to_owned()) };
        let _place = self.section.places.acquire().await.map_err(|error| error.to_string())?;
        let _turn = self.section.turns.turn(Purpose::Order, OF_ORDER).await;
        if lock(&self.section.silent_until).is_some_and(|until| Instant::now() < until) {
            return Err("the authority does not answer".to_owned());
        }
        let failed = |fault: Fault| {
            if fault.setback() == Setback::Unavailable {
                *lock(&self.section.silent_until) = Some(Instant::now() + SILENCE);
            }
            fault.to_string()
        };
        let opened = self.section.account().await.map_err(|(fault, _)| failed(fault))?;
        let Some(opened) = opened else { return Err("another process is registering".to_owned()) };
        let info = opened.account.renewal_info(&id).await;
        let doing = "ask when to renew";
        let (info, again) = info.map_err(|source| failed(Fault::Authority { doing, source }))?;
        let window = Window {
            start: SystemTime::from(info.suggested_window.start),
            end: SystemTime::from(info.suggested_window.end),
        };
        // A window without length means nothing (RFC 9773 section 4.2).
        Ok(((window.start < window.end).then_some(window), again))
    }

    async fn order(
        &self,
        before: Option<&Bundle>,
        reason: Reason,
    ) -> Result<Done, (Fault, Option<Duration>)> {
        // Not before the account is there, and not more at once than is decent.
        let Ok(_place) = self.section.places.acquire().await else { return Ok(Done::Elsewhere) };
        let _turn = self.section.turns.turn(Purpose::Order, OF_ORDER).await;
        let files = self.files.clone();
        let locked = on_disk(move || {
            files.prepare()?;
            let locked = files.lock()?;
            files.probe()?;
            Ok(locked)
        });
        let alone = |fault| (fault, None);
        let Some(_lock) = locked.await.map_err(alone)? else { return Ok(Done::Elsewhere) };
        // Whoever had the lock before may have brought it.
        if self.held().await.map(|bundle| bundle.leaf) != before.map(|bundle| bundle.leaf.clone()) {
            return Ok(Done::Elsewhere);
        }
        let Some(Opened { account, client }) = self.section.account().await? else {
            return Ok(Done::Elsewhere);
        };
        let settings = &self.section.settings;
        let wanted = Wanted {
            certificate: &self.certificate,
            challenge: settings.challenge,
            profile: settings.profile.as_deref(),
            replaces: before.and_then(identifier),
            limits: Limits::USUAL,
        };
        let words = match reason {
            Reason::Missing => "ordering",
            Reason::Suggested | Reason::Age => "renewing",
        };
        let names = self.certificate.names.join(", ");
        self.state.events.record(Level::Info, &self.subject, format!("{words}: {names}"));
        let text = order::order(&account, &wanted, &self.state.acme.challenges).await;
        let text = text.map_err(|fault| (fault, client.take_retry_after()))?;
        let files = self.files.clone();
        let until = on_disk(move || {
            files.install(&text)?;
            Ok(files.bundle().map(|bundle| bundle.facts.not_after))
        });
        let until = until.await.map_err(alone)?.map(timestamp).unwrap_or_default();
        self.state.events.record(Level::Info, &self.subject, format!("issued: valid until {until}"));
        Ok(Done::Issued)
    }

    fn say_failed(&self, before: Option<&Bundle>, words: &str, again: SystemTime) {
        self.state.acme.failed.fetch_add(1, Relaxed);
        let again = timestamp(again);
        let rest = match before {
            Some(bundle) => {
                format!(
                    "the certificate that is there serves on, until {}",
                    timestamp(bundle.facts.not_after)
                )
            }
            None => NONE_YET.to_owned(),
        };
        self.state.events.record(Level::Error, &self.subject, format!("{words}; the next try is at {again}"));
        self.state.degrade(&self.subject, &format!("{rest}: {words}"));
    }

    /// Keeps what was tried. That it could not be kept is no reason to stop, and the next order will say so.
    async fn note(&self, progress: &Progress, reason: Option<&str>) {
        let (files, progress, reason) = (self.files.clone(), *progress, reason.map(ToOwned::to_owned));
        if let Err(fault) = on_disk(move || files.note(&progress, reason.as_deref())).await {
            tracing::warn!(subject = self.subject, "{fault}");
        }
    }

    fn publish(&self, phase: Phase, next: Next, progress: &Progress, reason: Option<&str>) {
        let standing = Standing {
            names: self.certificate.names.clone(),
            phase,
            next,
            failures: progress.failures,
            reason: reason.map(ToOwned::to_owned),
        };
        let key = (self.section.settings.name.clone(), self.certificate.name.clone());
        lock(&self.state.acme.standings).insert(key, standing);
    }
}

fn validity(bundle: &Bundle) -> Validity {
    Validity { from: bundle.facts.not_before, until: bundle.facts.not_after }
}

fn held(bundle: &Bundle, suggestion: Option<&Suggestion>) -> Held {
    // Of the certificate's own bytes: the same after a restart and on another machine, and another one for the next.
    let place = logic::balance::hash_bytes(0, &bundle.leaf) as f64 / u64::MAX as f64;
    let suggested = suggestion.filter(|it| it.leaf == bundle.leaf).and_then(|it| it.window);
    Held { validity: validity(bundle), suggested, place }
}

/// What the authority calls the certificate (RFC 9773 section 4.1).
fn identifier(bundle: &Bundle) -> Option<CertificateIdentifier<'static>> {
    let mut serial = bundle.facts.serial.clone();
    // As its DER has it: a number is positive.
    if serial.first().is_none_or(|first| first & 0x80 != 0) {
        serial.insert(0, 0);
    }
    let key = bundle.authority_key.as_deref()?;
    Some(CertificateIdentifier::new(Der::from_slice(key), Der::from_slice(&serial)).into_owned())
}
