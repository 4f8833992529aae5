//! Who acts, and why: what commands that change something leave in the audit.

use clap::Args;

use crate::source::admin::Operator;

#[derive(Debug, Args)]
pub(super) struct By {
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who, for the audit. Without it: $USER.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl By {
    /// For the audit.
    pub(super) fn operator(&self) -> Operator {
        let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
        Operator {
            name: self
                .by
                .clone()
                .or_else(user)
                .unwrap_or_else(|| "unknown".to_owned()),
            reason: self.reason.clone(),
        }
    }
}
