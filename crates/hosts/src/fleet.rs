//! Decisions about many hosts: host lists and groups, the result of each host, and how outputs are shown.

pub mod again;
pub mod difference;
pub mod ending;
pub mod fold;
pub mod groups;
pub mod hostfile;
pub mod line;
pub mod mpssh;
pub mod nodeset;
pub mod openssh;
pub mod pace;
pub mod proxy_command;
pub mod script;
pub mod text;
pub mod verdict;
pub mod watcher;
pub mod waves;
