"""The exercises of the chapters, a module each; `mooncake_edu.course.check` runs them."""
