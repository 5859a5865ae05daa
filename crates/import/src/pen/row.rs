//! A row of the tables of options and commands: what becomes of one, and an example that a test translates.

/// What becomes of an option or command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It becomes these keys.
    Keys(&'static str),
    /// Nothing is to be written: the reason.
    Needless(&'static str),
    /// Another command does it.
    Elsewhere(&'static str),
    /// It is gone: the reason.
    Gone(&'static str),
}

impl Form {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Keys(text) | Self::Needless(text) | Self::Elsewhere(text) | Self::Gone(text) => text,
        }
    }
}

/// What is known of an option or command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Its argument, as in Pen's manual; empty without one.
    pub(crate) argument: &'static str,
    /// What it means in Pen.
    pub(crate) meaning: &'static str,
    pub(crate) form: Form,
    /// Arguments of a command line, or lines of a file, that use it.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test translates it"))]
    pub(crate) example: &'static str,
    /// What is in the translation of the example: a line of the configuration, or a part of a note.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test looks for it"))]
    pub(crate) gives: &'static str,
}

/// Defines `row` of an enum: `Variant: argument, meaning, form, example, gives;` for each variant.
macro_rules! rows {
    ($($variant:ident: $argument:literal, $meaning:literal, $form:ident($text:literal), $example:literal, $gives:literal;)+) => {
        /// What becomes of it.
        pub(crate) const fn row(self) -> $crate::pen::row::Row {
            match self {
                $(Self::$variant => $crate::pen::row::Row {
                    argument: $argument,
                    meaning: $meaning,
                    form: $crate::pen::row::Form::$form($text),
                    example: $example,
                    gives: $gives,
                },)+
            }
        }
    };
}
pub(crate) use rows;
