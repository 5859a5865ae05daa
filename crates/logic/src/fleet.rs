//! Decisions about many hosts at once: which they are, what happened on each, and how their output is shown.

pub mod difference;
pub mod ending;
pub mod fold;
pub mod groups;
pub mod hostfile;
pub mod leash;
pub mod line;
pub mod mpssh;
pub mod nodeset;
pub mod openssh;
pub mod pace;
pub mod proxy_command;
pub mod script;
pub mod text;
pub mod verdict;
pub mod waves;
