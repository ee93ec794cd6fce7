//! The work that one verdict may cost.

use super::super::expr::TooLarge;

/// Counted work: a verdict never depends on the load of the machine. A unit is about ten nanoseconds of the computation that it stands for.
#[derive(Clone, Debug)]
pub struct Budget {
    left: u64,
}

/// What a verdict may cost: about a millisecond and a half.
const UNITS: u64 = 150_000;

impl Budget {
    /// The work of a whole verdict.
    pub fn new() -> Self {
        Self { left: UNITS }
    }

    /// Units that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Takes `units` off, or says what was too large for them.
    pub fn spend(&mut self, units: u64, what: &'static str) -> Result<(), TooLarge> {
        match self.left.checked_sub(units) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(TooLarge(what))
            }
        }
    }

    /// Does a part of the work that may take at most a `share`-th of what is left: if it fails, there is something left for another way.
    pub fn part<T>(&mut self, share: u64, work: impl FnOnce(&mut Budget) -> T) -> T {
        let mut part = Self { left: self.left / share };
        let kept = self.left - part.left;
        let result = work(&mut part);
        self.left = kept + part.left;
        result
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}
