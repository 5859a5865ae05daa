//! The part of a start for which the process has one thread: takes descriptors and addresses, and gives up the rights that these
//! needed. Processes that start others are started here, too, before files are restricted.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use config::types::{BindAddress, Engine, Workers};
use state::State;
use state::data_path::StalePrograms;
use state::engine::{EngineInUse, EngineState};
use state::events::Level;
use state::listen::Passed;
use state::log_level::LogLevel;
use state::state_directory::{self, StateDirectory};
use sys::pid_file::PidFile;
use sys::privilege::Capability;
use sys::sandbox::calls::Rings;

use super::{Options, Prepared, StartError, means, system};
use crate::acceptor::Bound;
use crate::acme::helper;
use crate::admin::{self, AdminError};
use crate::control;
use crate::kept::{Files, Found};
use crate::needs::{Needs, services};
use crate::reload;
use crate::upgrade::take_over::TakeOver;
use crate::{confinement, paths};

/// Descriptors of the process beside workers and listeners: the main runtime, signals, admin and control sockets,
/// certificate watchers, the access log, the guardian, and further descriptors of admin and control sockets for an upgrade.
const OF_PROCESS: usize = 18;

/// Threads beside the workers: slow tasks and two for their blocking calls, control, access log, events, ticket keys, state,
/// the store of one-time-password tokens.
const OTHER_THREADS: usize = 9;

impl Prepared {
    pub(super) fn new(options: &Options) -> Result<Self, StartError> {
        let config = Arc::new(options.config.config.clone());
        let take_over = options.take_over.as_deref();
        let mut passed = match take_over {
            Some(take_over) => take_over.greet()?,
            None => Passed::take()?,
        };
        let pid_file = config.process.pid_file.as_deref();
        // That of the process before comes with its last step.
        let pid_file = pid_file.filter(|path| !take_over.is_some_and(|it| it.has_pid_file(path)));
        let pid_file = pid_file.map(PidFile::take).transpose()?;
        let limit = sys::descriptors::raise_limit().map_err(system("raise the limit of descriptors"))?;
        let base =
            sys::descriptors::open_count().map_err(system("count open descriptors in /proc/self/fd"))?;
        let workers = match config.process.workers {
            Workers::Auto => sys::cpu::count(),
            Workers::Count(count) => count.get(),
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let descriptors = Needs { limit, base: base + OF_PROCESS, workers, services: services(&config) };
        let division = descriptors.divide(&config)?;
        let stale = StalePrograms::find(&config, options.source.file()).map_err(StartError::StaleProgram)?;
        let opened = reload::open_new(&config, &HashMap::new(), &[], workers, &mut passed)
            .map_err(StartError::Bind)?;
        passed.drop_handed();
        let admin = config.admin.as_ref().map(|admin| bind_admin(&admin.bind, take_over)).transpose()?;
        let control = config.control.as_ref().map(|settings| control::bind(settings, take_over)).transpose();
        let variable = || options.config.variable_at("control.socket").map(str::to_owned);
        let control = control.map_err(|error| StartError::Control { error, variable: variable() })?;
        let needs = paths::of(&config, options.source.file());
        let mut state = State::new(workers);
        state.log_level = LogLevel::new(options.log_level);
        let programs = [opened.programs(), stale.directories()].concat();
        let further = (opened.needs_rights() || stale.needs_rights()).then_some(Capability::NetAdmin);
        state.confinement = confinement::drop_privileges(&config, &needs, &programs, further)?;
        let directory = config.process.state_directory.as_deref();
        let directory = state_directory::chosen(directory, options.source.file());
        open_state_directory(directory.as_deref(), &mut state);
        let helper = helper::start(&config).map_err(system("start the helper that runs acme commands"))?;
        state.confinement.commands = helper.commands().to_vec();
        let guardian = means::start_guardian(&options.launch, &config);
        state.engine = EngineState::make(&config, workers);
        let rings = match state.engine.in_use {
            EngineInUse::IoUring => Rings::Used,
            EngineInUse::Epoll | EngineInUse::EpollInstead(_) => Rings::Unused,
        };
        confinement::restrict(&mut state.confinement, &config, &needs, &programs, rings, options.sandbox);
        confinement::tell(&state);
        if let (EngineInUse::EpollInstead(why), Engine::IoUring) = (&state.engine.in_use, state.engine.chosen)
        {
            let message =
                format!("process.engine: io_uring cannot be used: {why}; TCP sessions are served by epoll");
            state.events.record(Level::Warning, "process", message);
        }
        let (files, found) = match take_over {
            Some(_) => (Files::later(directory.as_deref()), Found::default()),
            None => Files::open(directory.as_deref(), &state),
        };
        let threads = workers + OTHER_THREADS + config.listeners.iter().filter(|it| it.tls.is_some()).count();
        sys::threads::try_out(threads).map_err(|source| StartError::Threads { threads, source })?;
        Ok(Self {
            config,
            workers,
            passed,
            pid_file,
            descriptors,
            division,
            stale,
            opened,
            admin,
            control,
            state,
            helper,
            guardian,
            files,
            found,
        })
    }
}

/// The admin listener of the process before, or a new one.
fn bind_admin(bind: &BindAddress, take_over: Option<&TakeOver>) -> Result<Bound, AdminError> {
    let handed = take_over.and_then(|it| it.admin(&bind.to_string()));
    match handed.and_then(|(socket, file)| Bound::passed_on(socket, file)) {
        Some(listener) => Ok(listener),
        None => admin::bind(bind),
    }
}

/// Opens the state directory. Without it, everything that does not need it works.
fn open_state_directory(directory: Option<&Path>, state: &mut State) {
    match directory.map(StateDirectory::open).transpose() {
        Ok(directory) => state.directory = directory,
        Err(error) => state.degrade("process.state-directory", &error.to_string()),
    }
}
