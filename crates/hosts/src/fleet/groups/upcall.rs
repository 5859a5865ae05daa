//! Upcalls of ClusterShell: commands that print groups.

/// The upcalls of one source as the file has them. `$GROUP`, `$NODE` and `$SOURCE` are replaced before a command runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upcalls {
    /// Prints the nodes of `$GROUP`.
    pub map: String,
    pub all: Option<String>,
    pub list: Option<String>,
    /// Prints the groups that contain `$NODE`.
    pub reverse: Option<String>,
    /// Working directory of the commands.
    pub directory: String,
}

/// One command for `sh -c`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upcall {
    /// Text for the shell, with all variables replaced.
    pub command: String,
    pub directory: String,
}
