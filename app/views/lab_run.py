def wire(lab, hub):
    pass
