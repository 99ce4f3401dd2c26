"""Every system that is compared, behind one interface (`base.System`)."""
