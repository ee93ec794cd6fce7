//! adaroll
