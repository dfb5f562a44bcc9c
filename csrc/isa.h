// Which copy of the loops this machine can run. Each loop is compiled once per level, in a namespace named after it.
#pragma once

namespace roundoff {

enum class Level { plain, v3, v4 };

// The best level of this processor, or the one that ROUNDOFF_ISA (plain, v3, v4) requests, if the processor has it.
Level level();

}  // namespace roundoff

// ROUNDOFF_PICK(f) is the copy of roundoff::<level>::f to call; f must be declared with ROUNDOFF_EACH_LEVEL.
#ifdef ROUNDOFF_X86_LEVELS
#define ROUNDOFF_EACH_LEVEL(declaration) \
  namespace plain { declaration; }       \
  namespace v3 { declaration; }          \
  namespace v4 { declaration; }
#define ROUNDOFF_PICK(f)                                        \
  (roundoff::level() == roundoff::Level::v4   ? roundoff::v4::f \
   : roundoff::level() == roundoff::Level::v3 ? roundoff::v3::f \
                                              : roundoff::plain::f)
#else
#define ROUNDOFF_EACH_LEVEL(declaration) \
  namespace plain { declaration; }
#define ROUNDOFF_PICK(f) roundoff::plain::f
#endif
