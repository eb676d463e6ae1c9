//! Contexts: pointers of the caller's that say something about the moment of an event.

use std::any::Any;
use std::sync::Arc;

use larder_core::record::context::{Context, ContextHook, Frame};

use crate::border::{Foreign, Problem};

/// `larder_contexts`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ContextFunctions {
    pub(crate) gather: Option<extern "C" fn(Foreign) -> Foreign>,
    pub(crate) retain: Option<extern "C" fn(Foreign, Foreign)>,
    pub(crate) release: Option<extern "C" fn(Foreign, Foreign)>,
    pub(crate) data: Foreign,
}

impl ContextFunctions {
    /// The hook that gathers contexts for an allocator.
    pub(crate) fn hook(self) -> Result<ContextHook, Problem> {
        let missing = || Problem::Argument("`contexts` needs the function `gather`".to_owned());
        let gather = self.gather.ok_or_else(missing)?;
        Ok(Arc::new(move || {
            let pointer = gather(self.data);
            let context = || Arc::new(ForeignContext { pointer, functions: self });
            (!pointer.is_null()).then(|| context() as Arc<dyn Context>)
        }))
    }
}

/// One reference to a context of the caller's, given back when it is dropped.
struct ForeignContext {
    pointer: Foreign,
    functions: ContextFunctions,
}

impl Drop for ForeignContext {
    fn drop(&mut self) {
        if let Some(release) = self.functions.release {
            release(self.functions.data, self.pointer);
        }
    }
}

impl Context for ForeignContext {
    fn fingerprint(&self) -> u64 {
        self.pointer.number()
    }

    fn is_same(&self, other: &dyn Context) -> bool {
        pointer_of(Some(other)) == self.pointer
    }

    /// Only its owner knows what it stands for.
    fn frames(&self) -> Vec<Frame> {
        Vec::new()
    }
}

fn foreign(context: &dyn Context) -> Option<&ForeignContext> {
    (context as &dyn Any).downcast_ref()
}

/// The caller's pointer; null for none.
pub(crate) fn pointer_of(context: Option<&dyn Context>) -> Foreign {
    context.and_then(foreign).map_or(Foreign::NULL, |context| context.pointer)
}

/// One more reference to the caller's context, for the caller; null for none.
pub(crate) fn retained(context: Option<&dyn Context>) -> Result<Foreign, Problem> {
    let Some(context) = context.and_then(foreign) else { return Ok(Foreign::NULL) };
    let missing = || Problem::Argument("`contexts` has no function `retain`".to_owned());
    let retain = context.functions.retain.ok_or_else(missing)?;
    retain(context.functions.data, context.pointer);
    Ok(context.pointer)
}
